"""A Helm release of a deployment's chart with the rendered values, through the user's own helm and the Kubernetes API.

What fails is rolled back to what ran before.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

from llm_serving import console
from llm_serving.aws.preflight import identity
from llm_serving.console import CommandFailed
from llm_serving.operations import add_ons as addons
from llm_serving.operations.kube_api import POD, Kind, KubeApi, Manifest
from llm_serving.settings.errors import CheckFailed, Unavailable
from llm_serving.targets import planning
from llm_serving.targets.base import READY
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.eks import helm, namespace, pods, readiness, traffic_shift
from llm_serving.targets.on_aws import images

_TEST_TIMEOUT_S = 180
"""Longest run of the chart's test: one request to the release's Service."""

_WAKE_INTERVAL_S = 30.0
"""Interval of test requests that wake a role without replicas: each keeps it awake for two minutes at least."""


def diff(plan: DeploymentPlan) -> str:
    """Return what a deploy would change: a unified diff, or the objects' names for a first deploy."""
    addons.require_tools()
    return helm.diff(plan, helm.read(plan))


def deploy(plan: DeploymentPlan, confirm: Callable[[str], None], *, force: bool = False) -> bool:
    """Upgrade the release and wait until it is ready; returns whether anything changed."""
    addons.require_tools()
    if plan.fleet.value.account:
        identity.require_account(plan.fleet, plan.aws)
    values_file = planning.write_rendered(plan, force=force)
    release = helm.read(plan)
    changes = helm.diff(plan, release)
    if not changes and release.is_latest:
        readiness.wait_until_ready(plan)
        return False
    images.require_images(plan)
    require_objects(plan)
    confirm(changes)
    with console.step("Apply namespace and service account"):
        namespace.apply(pods.open_api(plan), plan.deployment)
    try:
        with console.step(f"Upgrade release {plan.deployment.name}"):
            options = ["--install", "--values", str(values_file), *addons.list_restore_options()]
            helm.run(plan, "upgrade", str(helm.get_chart(plan)), *options)
        readiness.wait_until_ready(plan)
        _run_chart_test(plan)
    except (CheckFailed, CommandFailed) as error:
        if addons.BUSY_MESSAGE in str(error):
            raise CheckFailed(_describe_remedy(plan, release)) from None
        raise CheckFailed(f"{error}\n{_roll_back(plan, release)}") from None
    return True


def require_objects(plan: DeploymentPlan) -> None:
    """Check that the cluster knows every kind of the release's objects, in the version that the chart writes, and that
    their names are free: a release `a-b` with a role `c` has those of a release `a` with a role `b-c`.

    Raises:
        CheckFailed: it lacks kinds, which operators bring, or has objects of others; names all of them.
        Unavailable: the cluster does not answer.
    """
    api, objects = pods.open_api(plan), helm.parse_objects(helm.render_objects(plan))
    kinds = {Kind(item["apiVersion"], item["kind"]): None for item in objects}
    if missing_kinds := [f"{kind.kind} ({kind.api_version})" for kind in kinds if not api.has_kind(kind)]:
        raise CheckFailed(
            f"{plan.deployment.name}: the cluster does not know {', '.join(missing_kinds)}. Nothing was changed. "
            f"Fix: install the operators, in the versions that charts/{plan.deployment.chart}/README.md names."
        )
    if taken_names := [line for item in objects for line in _describe_other_owner(plan, api, item)]:
        raise CheckFailed(
            f"{plan.deployment.name}: its objects have names that are taken: {', '.join(taken_names)}. Nothing was "
            f"changed. Fix: choose another `name` in {plan.blueprint.path}"
        )


def _describe_other_owner(plan: DeploymentPlan, api: KubeApi, resource: Manifest) -> Iterator[str]:
    """Yield an object of the name that another release, or nobody's, has in the cluster."""
    kind, metadata = Kind(resource["apiVersion"], resource["kind"]), resource["metadata"]
    present = api.find(kind, metadata["name"], metadata.get("namespace"))
    owner = present["metadata"].get("annotations", {}).get("meta.helm.sh/release-name") if present else None
    if present and owner != plan.deployment.name:
        yield f"{kind.kind} {metadata['name']} (of {f'the release {owner}' if owner else 'no release'})"


@contextlib.contextmanager
def open_tunnel(plan: DeploymentPlan, port: int = 0) -> Iterator[str]:
    """Forward a port of this machine to what clients call; suits trials, not thousands of requests per second."""
    planning.require_endpoint(plan)
    address = urlsplit(plan.deployment.url)
    service = str(address.hostname).partition(".")[0]
    with pods.open_api(plan).forward_port(service, pods.get_namespace(plan), address.port or 80, port) as near_port:
        far_port = port or address.port
        console.err.print(f"  Forwarding 127.0.0.1:{near_port} to the Service {service} port {far_port}", markup=False)
        yield f"http://127.0.0.1:{near_port}"


def destroy(plan: DeploymentPlan) -> bool:
    """Uninstall the release and wait until its pods are gone; returns whether there was one.

    Raises:
        CheckFailed: a route sends it a share of its requests, or it is a route itself.
    """
    addons.require_tools()
    if not helm.list_revisions(plan):
        return False
    helm.require_deployment(plan, helm.read_manifest(plan))
    name = plan.deployment.name
    if routes := traffic_shift.find_routes(pods.open_api(plan), name):
        reason = f"route {routes[0]} sends it a share of its requests, which would fail. Nothing was changed"
        removal = f"helm uninstall {routes[0]} --namespace {pods.get_namespace(plan)}"
        raise CheckFailed(f"{name}: {reason}. Fix: run blueprint shift {routes[0]} without it, or {removal}.")
    with console.step(f"Remove {plan.deployment.name}"):
        _uninstall(plan)
    return True


def _uninstall(plan: DeploymentPlan) -> None:
    timeout_s = max((service.stop.stop_s for service in plan.deployment.services), default=0) + 300
    # Foreground deletion: controllers go after their pods.
    options = ("--cascade=foreground", "--wait", f"--timeout={timeout_s}s")
    helm.run(plan, "uninstall", *options, timeout_s=timeout_s + 60)
    # Helm keeps the pod of a failed test for its log.
    api = pods.open_api(plan)
    pods_left = api.list_objects(POD, pods.get_namespace(plan), labels=pods.build_selector(plan))
    api.delete_objects(pods_left, helm.QUERY_TIMEOUT_S)


def require_release(plan: DeploymentPlan) -> None:
    """Accept a deployment that has a release.

    Raises:
        Unavailable: it has none, helm is missing, or the cluster does not answer.
    """
    addons.require_tools()
    if not helm.list_revisions(plan):
        raise Unavailable(f"{plan.deployment.name}: not deployed on eks. Fix: run blueprint deploy.")


def _run_chart_test(plan: DeploymentPlan) -> None:
    """Run the chart's test: a pod calls the release's Service as a client would.

    Where a role sleeps, the request fails and wakes it; it is sent again until a replica had the time to start.
    """
    deadline = time.monotonic() + planning.compute_start_s(plan.deployment.services)
    with console.step("Send a test request") as step:
        while True:
            asleep = _list_sleeping_roles(plan)
            try:
                helm.run(plan, "test", "--timeout", f"{_TEST_TIMEOUT_S}s", timeout_s=_TEST_TIMEOUT_S + 30)
            except CommandFailed as error:
                if not asleep or time.monotonic() > deadline:
                    raise CheckFailed(f"{error}\n{pods.read_pod_log(plan, f'{plan.deployment.name}-test')}") from None
            else:
                return
            step.note = f"it wakes {', '.join(asleep)}"
            time.sleep(_WAKE_INTERVAL_S)


def _list_sleeping_roles(plan: DeploymentPlan) -> list[str]:
    """List the roles that may have no replica and have none that is ready."""
    awake = {pod.role for pod in pods.list_replicas(plan) if pod.state == READY}
    may_sleep = [service.role for service in plan.deployment.services if service.replicas.min == 0]
    return [role for role in may_sleep if role not in awake]


def _describe_remedy(plan: DeploymentPlan, release: helm.Release) -> str:
    rollback = (
        [*helm.build_command("rollback", plan), str(release.revision)]
        if release.revision
        else helm.build_command("uninstall", plan)
    )
    return addons.describe_busy(plan.deployment.name, f"{console.quote_command(rollback)} and deploy again")


def _roll_back(plan: DeploymentPlan, release: helm.Release) -> str:
    """Roll back to the previous revision; returns what runs now."""
    name = plan.deployment.name
    try:
        if release.revision is None:
            with console.step(f"Remove {name} (there was no previous release)"):
                _uninstall(plan)
            return f"{name} had no previous release and was removed"
        with console.step(f"Roll back to revision {release.revision}"):
            helm.run(plan, "rollback", str(release.revision), *addons.list_restore_options())
        readiness.wait_until_ready(plan)
    except (CheckFailed, CommandFailed, Unavailable) as error:
        return f"rollback failed: {error}"
    return "rolled back: the previous revision runs"
