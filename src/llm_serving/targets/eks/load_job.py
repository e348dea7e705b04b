"""The load drivers of a validation on EKS: an indexed Job in the release's namespace, with a pod for each process.

The pods carry the release's labels, as the pod of its `helm test` does: so its network policies let them reach routers
and engines, and removing the release removes them too. They have no service account's token and no role of AWS. The Job
owns what else is made for it, so that all of it goes with the Job: deleted after the load or, if this machine is gone,
by Kubernetes' own time limits.

A kind whose deployments answer no requests brings a program of its own, in place of the image of load drivers.
"""

from __future__ import annotations

import contextlib
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from llm_serving import console
from llm_serving.operations.kube_api import POD, ApiError, Kind, Manifest
from llm_serving.services.load_program import LoadProgram
from llm_serving.settings import own_yaml
from llm_serving.settings.errors import Unavailable
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.eks import pods
from llm_serving.targets.on_aws import images

COMPONENT = "load-driver"

_SECRET = Kind("v1", "Secret")
_DELETE_S = 50.0
_FILE = Path(__file__).with_name("load_job.yaml")


@contextlib.contextmanager
def run(
    plan: DeploymentPlan, urls: Sequence[str], limit_s: int, program: LoadProgram | None = None
) -> Iterator[LoadJob]:
    """Run a pod for each input's URL, and delete the Job with all that belongs to it after the block.

    Args:
        limit_s: seconds after which Kubernetes ends the Job by itself.
        program: what the pods run; the image of load drivers if None.

    Raises:
        Unavailable: the cluster does not answer, refuses an object, or lacks a Secret that the pods have as files.
    """
    name = f"{plan.deployment.name}-load-{secrets.token_hex(4)}"
    _require_secrets(plan, program)
    api, job = pods.open_api(plan), build_job(plan, name, len(urls), limit_s=limit_s, program=program)
    try:
        uid = api.create(job)["metadata"]["uid"]
        # The pods wait for the Secret, so the network policy is there before them.
        for manifest in build_belongings(plan, name, uid, urls):
            api.create(manifest)
        yield LoadJob(plan, name)
    finally:
        try:
            api.delete_objects([job], _DELETE_S)
        except ApiError as error:
            console.err.print(f"Job {name} was not deleted; it ends by itself: {error}", style="yellow", markup=False)


def _require_secrets(plan: DeploymentPlan, program: LoadProgram | None) -> None:
    """Check that a pod would not wait for a Secret until the load's time is over."""
    api, namespace = pods.open_api(plan), plan.deployment.environment.namespace
    for entry in program.secrets.values() if program else ():
        with contextlib.suppress(ApiError):  # who may not read it may still mount it
            if api.find(_SECRET, entry.secret, namespace) is None:
                reason = "does not exist: the deployment is older than its load driver, or no operator has made it"
                raise Unavailable(f"the Secret {entry.secret} {reason}. Fix: run blueprint deploy.")


class LoadJob:
    """A Job that was created."""

    def __init__(self, plan: DeploymentPlan, name: str) -> None:
        self._plan, self._selector = plan, f"batch.kubernetes.io/job-name={name}"

    def describe(self) -> str:
        """Say how far the pods are, with the scheduler's or the kubelet's reason where they do not run."""
        states = Counter(self._describe_pod(pod) for pod in self._list_pods())
        return ", ".join(f"{count} {state}" for state, count in states.items()) or "no pods yet"

    def find_failure(self) -> str | None:
        """Return a failed pod with the end of its log; None if none failed."""
        for pod in self._list_pods():
            if pod.get("status", {}).get("phase") == "Failed":
                name, reason = pod["metadata"]["name"], pod["status"].get("reason", "it failed")
                return f"{name}: {reason}\n{pods.read_pod_log(self._plan, name)}"
        return None

    def _describe_pod(self, pod: Manifest) -> str:
        phase = str(pod.get("status", {}).get("phase", "Unknown"))
        return pods.parse_pod(pod).state if phase == "Pending" else phase.lower()

    def _list_pods(self) -> list[Manifest]:
        namespace = self._plan.deployment.environment.namespace
        try:
            return pods.open_api(self._plan).list_objects(POD, namespace, labels=self._selector)
        except ApiError:  # the cluster may answer the next time, and the load goes on without
            return []


def build_job(
    plan: DeploymentPlan, name: str, count: int, *, limit_s: int, program: LoadProgram | None = None
) -> Manifest:
    """Build the Job: a pod for each process, away from one another and from the engines."""
    values = {
        "metadata": _build_metadata(plan, name),
        "labels": _build_labels(plan),
        "deployment": plan.deployment.name,
        "name": name,
        "count": count,
        "limit_s": limit_s,
        "image": program.image if program else images.format_load_driver(plan),
    }
    job: Manifest = own_yaml.fill_values(own_yaml.read(_FILE)["job"], values)
    if program:
        pod = job["spec"]["template"]["spec"]
        [container] = pod["containers"]
        container["command"] = list(program.command)
        for number, (path, entry) in enumerate(program.secrets.items()):
            volume, file = f"secret-{number}", PurePosixPath(path)
            secret = {
                "secretName": entry.secret,
                "items": [{"key": entry.key, "path": file.name}],
                "defaultMode": 0o440,
            }
            pod["volumes"].append({"name": volume, "secret": secret})
            container["volumeMounts"].append({"name": volume, "mountPath": str(file.parent), "readOnly": True})
    return job


def build_belongings(plan: DeploymentPlan, name: str, uid: str, urls: Sequence[str]) -> list[Manifest]:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid, "blockOwnerDeletion": False}
    values = {
        "metadata": {**_build_metadata(plan, name), "ownerReferences": [owner]},
        "name": name,
        "urls": {str(index): url for index, url in enumerate(urls)},
    }
    return [own_yaml.fill_values(manifest, values) for manifest in own_yaml.read(_FILE)["belongings"]]


def _build_metadata(plan: DeploymentPlan, name: str) -> Manifest:
    return {"name": name, "namespace": plan.deployment.environment.namespace, "labels": _build_labels(plan)}


def _build_labels(plan: DeploymentPlan) -> dict[str, str]:
    """Return the release's own, by which its network policies select its pods."""
    return {
        "app.kubernetes.io/name": plan.deployment.chart,
        "app.kubernetes.io/instance": plan.deployment.name,
        "app.kubernetes.io/component": COMPONENT,
    }
