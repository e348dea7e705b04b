"""A Kubernetes control plane on loopback: the real API server, controllers, scheduler and clients; kwok simulates nodes.

Real are the cluster's decisions: validation, admission, RBAC, scheduling, rollouts, evictions, and the streams of
`kubectl logs` and `kubectl port-forward` through the API server. Simulated are the nodes: no container runs, pods are
ready without probes, and nothing routes services or enforces network policies. Controllers of custom resources (KEDA,
LeaderWorkerSet, Prometheus, a Gateway) do not run either: their objects are stored unchanged.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import signal
import ssl
import subprocess
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from llm_serving import processes
from llm_serving.operations import kube_api
from llm_serving.operations.kube_api import ApiError, Kind, KubeApi, Manifest
from llm_serving.settings.errors import Unavailable
from tests import go_programs
from tests.charts import objects
from tests.control_plane import programs
from tests.go_programs import Program

STAGES = Path(__file__).with_name("stages.yaml")

_LIMIT_S = 240.0
"""Of each wait: beside twenty busy programs on two cores, a start takes 80 s."""

_SCHEDULER_RATE = ("--kube-api-qps=1000", "--kube-api-burst=2000")
"""By default 50 requests a second, which 10,000 pods wait 200 s for, whatever the CPU."""

_COLLECT = {"GOGC": "400", "GOMEMLIMIT": "1000MiB"}
"""Fewer garbage collections for many short-lived Go programs, with a memory limit for the API server, which holds 200 MiB:
at 500 MiB a fifth of its CPU time went into collections."""

_CONTROLLERS = (
    "deployment-controller",
    "disruption-controller",
    "endpointslice-controller",
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
    "replicaset-controller",
    "serviceaccount-controller",
)
"""Controllers of the tests' objects, without that of node heartbeats, which kwok does not send."""


DEFINITION = Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition")
NODE = Kind("v1", "Node")
SECRET = Kind("v1", "Secret")
ACCOUNT = Kind("v1", "ServiceAccount")
DEPLOYMENT = Kind("apps/v1", "Deployment")
JOB = Kind("batch/v1", "Job")
NETWORK_POLICY = Kind("networking.k8s.io/v1", "NetworkPolicy")
BUDGET = Kind("policy/v1", "PodDisruptionBudget")
ENDPOINTS = Kind("discovery.k8s.io/v1", "EndpointSlice")
RELEASED = (
    kube_api.POD,
    kube_api.SERVICE,
    SECRET,
    ACCOUNT,
    Kind("v1", "ConfigMap"),
    DEPLOYMENT,
    Kind("apps/v1", "ReplicaSet"),
    JOB,
    NETWORK_POLICY,
    BUDGET,
    Kind("rbac.authorization.k8s.io/v1", "Role"),
    Kind("rbac.authorization.k8s.io/v1", "RoleBinding"),
)
"""Kinds of Kubernetes' own that releases have."""


@dataclass(frozen=True)
class ControlPlane:
    """A running control plane."""

    folder: Path
    """Logs and state."""

    helm: str
    """The program's path."""

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig of a cluster administrator."""
        return self.folder / "kubeconfig"

    @property
    def pods_log(self) -> Path:
        """Log of every container, in the format of the Container Runtime Interface."""
        return self.folder / "pods.log"

    @property
    def pods_programs(self) -> Path:
        """Programs that commands in a container find before this machine's own."""
        return self.folder / "pods-bin"

    @property
    def environment(self) -> dict[str, str]:
        """Environment in which helm and the product use this control plane only."""
        path = os.pathsep.join([str(Path(self.helm).parent), os.environ["PATH"]])
        home = {f"HELM_{kind}_HOME": str(self.folder / "helm") for kind in ("CACHE", "CONFIG", "DATA")}
        return {"PATH": path, "KUBECONFIG": str(self.kubeconfig), **home, **_COLLECT}

    @property
    def api(self) -> KubeApi:
        """Its API, as the product calls it."""
        return kube_api.open_api(self.kubeconfig)

    def read(self, kind: Kind, name: str, namespace: str | None = None) -> Manifest:
        """Return an object that is there."""
        manifest = self.api.find(kind, name, namespace)
        assert manifest is not None, f"there is no {kind.kind} {name}"
        return manifest

    def list_names(self, *kinds: Kind, namespace: str, labels: str = "") -> list[str]:
        """Return KIND/NAME of each object in a namespace."""
        return [
            f"{item['kind']}/{item['metadata']['name']}"
            for kind in kinds
            for item in self.api.list_objects(kind, namespace, labels=labels)
        ]

    def patch(self, path: str, **fields: Any) -> None:
        """Merge fields into the object at a path of the API."""
        self.request("patch", path, fields, content_type="application/merge-patch+json")

    def wait_for_scheduler(self, nodes: Iterable[str]) -> None:
        """Wait until the scheduler knows nodes, which may be later than the API server does.

        A pod's preferences count among those that it knows.
        """
        probes = [
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": f"probe-{node}", "namespace": "default"},
                "spec": {
                    "nodeSelector": {"kubernetes.io/hostname": node},
                    "tolerations": [{"operator": "Exists"}],
                    "containers": [{"name": "probe", "image": "probe:0"}],
                },
            }
            for node in nodes
        ]
        self.api.apply(probes)

        def is_placed(probe: Manifest) -> bool:
            return "nodeName" in self.read(kube_api.POD, probe["metadata"]["name"], "default")["spec"]

        processes.wait_until(lambda: all(map(is_placed, probes)), "the scheduler's word on each node", _LIMIT_S)
        self.api.delete_objects(probes, _LIMIT_S)

    def remove(self, *objects: Manifest) -> None:
        """Delete objects, each once the one before is gone: kwok never ends a pod whose node is gone."""
        for item in objects:
            self.api.delete_objects([item], timeout_s=_LIMIT_S)

    def evict(self, pod: str, namespace: str) -> str:
        """Ask for a pod's eviction, as `kubectl drain` does; return why it is refused, empty if it is not."""
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace}}
        return self._find_refusal(f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction", eviction)[0]

    def request(self, method: str, path: str, body: Any = None, *, user: str = "", **options: Any) -> Any:
        """Return the response to a request that no method of the product's client sends, through the same library.

        Args:
            user: on whose behalf it is sent.

        Raises:
            ApiException: the API server refuses it.
        """
        headers = {"Impersonate-User": user} if user else {}
        return self._client.request(
            method, path, body=body, serialize=False, header_params=headers, _request_timeout=_LIMIT_S, **options
        )

    @functools.cached_property
    def _client(self) -> Any:
        from kubernetes.config import new_client_from_config
        from kubernetes.dynamic import DynamicClient

        return DynamicClient(new_client_from_config(str(self.kubeconfig)), cache_file=f"{os.devnull}/none")

    def find_errors(self, objects: Sequence[dict[str, Any]]) -> list[str]:
        """Return the API server's errors and warnings for objects, in a dry run, one per line."""
        return [line for manifest in objects for line in self._validate(manifest)]

    def _validate(self, manifest: Manifest) -> list[str]:
        """Validate an object on the server, strictly."""
        version, namespace = manifest["apiVersion"], manifest["metadata"].get("namespace")
        root = "/apis/" if "/" in version else "/api/"
        namespace_path = f"/namespaces/{namespace}" if namespace else ""
        path = f"{root}{version}{namespace_path}/{_pluralize(manifest['kind'])}?dryRun=All&fieldValidation=Strict"
        refusal, warnings = self._find_refusal(path, manifest)
        return [refusal] if refusal else warnings

    def _find_refusal(self, path: str, manifest: Manifest) -> tuple[str, list[str]]:
        """Return why the server refuses an object, empty if it does not, and its warnings."""
        from kubernetes.client import ApiException

        try:
            return "", list(self.request("post", path, manifest).headers.getlist("Warning"))
        except ApiException as error:
            return str(json.loads(error.body)["message"]), []


def _pluralize(kind: str) -> str:
    """Return the plural in the API's paths."""
    name = kind.lower()
    if name.endswith("y") and name[-2] not in "aeiou":
        return f"{name[:-1]}ies"
    return f"{name}es" if name.endswith("s") else f"{name}s"


@contextlib.contextmanager
def run(folder: Path, helm: str, backend_port: int) -> Iterator[ControlPlane]:
    """Run a control plane with the chart's custom resources for the time of the block.

    Args:
        folder: empty; holds what it writes.
        helm: the program's path, for those who use it.
        backend_port: the loopback port that a connection to any port of any pod ends at.

    Raises:
        Unavailable: it cannot be built or does not come up.
        CommandFailed: the build failed.
    """
    tools = {program.name: go_programs.find_or_build(program) for program in programs.ALL_PROGRAMS}
    etcd, peer, api, kubelet = processes.claim_free_ports(4)
    control_plane = ControlPlane(folder, helm)
    with contextlib.ExitStack() as exit_stack:
        children: dict[str, subprocess.Popen[bytes]] = {}

        def start(program: Program, *words: str) -> None:
            log = exit_stack.enter_context((folder / f"{program.name}.log").open("wb"))
            # Stop the API server first: without etcd it waits forever.
            command = [tools[program.name], *words]
            path = os.pathsep.join([str(control_plane.pods_programs), os.environ["PATH"]])
            environment = {**_COLLECT, "PATH": path}
            children[program.name] = processes.spawn(
                command, cwd=folder, environment=environment, output=log, orphan_signal=signal.SIGKILL
            )

        def is_up(url: str, context: ssl.SSLContext | None = None) -> bool:
            for name, child in children.items():
                if child.poll() is not None:
                    log_lines = (folder / f"{name}.log").read_text(errors="replace").splitlines()[-5:]
                    raise Unavailable(f"{name} ended: {' '.join(log_lines)}")
            with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5, context=context):
                return True
            return False

        # Its data is temporary: do not wait for a clean shutdown.
        exit_stack.callback(lambda: processes.stop_all(list(children.values()), grace_s=0.2))
        start(programs.ETCD, *_build_etcd_command(etcd, peer))
        token = _write_identities(folder)
        start(programs.API_SERVER, *_build_api_server_command(etcd, api))
        ready_url = f"https://127.0.0.1:{api}/readyz"
        authority = folder / "certificates" / "apiserver.crt"
        # Its key is written after it: then it is whole.
        processes.wait_until(authority.with_suffix(".key").exists, "the API server's certificate", _LIMIT_S)
        _write_kubeconfig(control_plane.kubeconfig, api, token, authority)
        context = ssl.create_default_context(cafile=str(authority))
        processes.wait_until(lambda: is_up(ready_url, context), "the API server", _LIMIT_S)
        admin_flags = (f"--kubeconfig={control_plane.kubeconfig}",)
        single_instance = ("--leader-elect=false", "--secure-port=0")
        keys = ("--service-account-private-key-file=accounts.key", f"--root-ca-file={authority}")
        start(programs.SCHEDULER, *admin_flags, *single_instance, *_SCHEDULER_RATE)
        start(programs.CONTROLLERS, *admin_flags, *single_instance, *keys, f"--controllers={','.join(_CONTROLLERS)}")
        start(programs.KWOK, *admin_flags, *_build_kwok_command(control_plane, kubelet, backend_port))
        add_kinds(control_plane, objects.CRDS)
        processes.wait_until(lambda: is_up(f"http://127.0.0.1:{kubelet}/healthz"), "kwok", _LIMIT_S)
        processes.wait_until(
            lambda: bool(control_plane.api.find(ACCOUNT, "default", "default")), "pods' account", _LIMIT_S
        )
        yield control_plane


def add_kinds(control_plane: ControlPlane, folder: Path) -> None:
    """Add the custom resource definitions of a folder, and wait until they are established and answer.

    The API server refuses the first list of a kind with "storage is (re)initializing".
    """
    definitions = list(objects.read_definitions(folder))
    control_plane.api.apply(definitions)

    def is_established(definition: Manifest) -> bool:
        conditions = definition.get("status", {}).get("conditions") or []
        return any(condition["type"] == "Established" and condition["status"] == "True" for condition in conditions)

    processes.wait_until(
        lambda: all(map(is_established, control_plane.api.list_objects(DEFINITION))), "the custom kinds", _LIMIT_S
    )

    def answers(definition: Manifest) -> bool:
        spec = definition["spec"]
        version = next(version["name"] for version in spec["versions"] if version["served"])
        with contextlib.suppress(ApiError):
            control_plane.api.list_objects(Kind(f"{spec['group']}/{version}", spec["names"]["kind"]))
            return True
        return False

    processes.wait_until(lambda: all(map(answers, definitions)), "answers of the custom kinds", _LIMIT_S)


def _write_identities(folder: Path) -> str:
    """Write the signing key of service account tokens and the administrator's token; return the token."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = serialization.PrivateFormat.TraditionalOpenSSL
    text = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    token = secrets.token_hex(16)
    for name, content in (("accounts.key", text), ("tokens.csv", f"{token},admin,1,system:masters\n".encode())):
        (folder / name).touch(mode=0o600)
        (folder / name).write_bytes(content)
    return token


def _build_etcd_command(port: int, peer: int) -> Sequence[str]:
    client, other = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer}"
    return (
        "--data-dir=etcd",
        "--unsafe-no-fsync",  # the data is temporary
        *(f"--listen-client-urls={client}", f"--advertise-client-urls={client}"),
        *(f"--listen-peer-urls={other}", f"--initial-advertise-peer-urls={other}"),
        f"--initial-cluster=default={other}",
    )


def _build_api_server_command(etcd: int, port: int) -> Sequence[str]:
    return (
        f"--etcd-servers=http://127.0.0.1:{etcd}",
        *("--bind-address=127.0.0.1", f"--secure-port={port}", "--cert-dir=certificates"),
        "--endpoint-reconciler-type=none",  # loopback cannot be a service endpoint
        "--service-cluster-ip-range=10.96.0.0/16",
        *("--authorization-mode=RBAC", "--token-auth-file=tokens.csv"),
        "--service-account-issuer=https://kubernetes.default.svc",
        *("--service-account-key-file=accounts.key", "--service-account-signing-key-file=accounts.key"),
        # The first heartbeat removes the taint of a new node, and kwok sends none.
        # No controller here would let a volume claim go that its protection holds.
        "--disable-admission-plugins=TaintNodesByCondition,StorageObjectInUseProtection",
        "--kubelet-preferred-address-types=InternalIP",
        "--allow-privileged",
    )


def _build_kwok_command(control_plane: ControlPlane, port: int, backend_port: int) -> Sequence[str]:
    """Run kwok: stages.yaml decides the life of pods, `pods_log` is the log of each, and commands in them run here."""
    control_plane.pods_log.touch()
    forwards = {"forwards": [{"target": {"address": "127.0.0.1", "port": backend_port}}]}
    logs = {"logs": [{"logsFile": str(control_plane.pods_log)}]}
    execs = {"execs": [{"local": {"workDir": str(control_plane.folder)}}]}
    documents = [
        {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": kind, "metadata": {"name": "all"}, "spec": spec}
        for kind, spec in (("ClusterPortForward", forwards), ("ClusterLogs", logs), ("ClusterExec", execs))
    ]
    config_path = control_plane.folder / "kwok.yaml"
    config_path.write_text(f"{STAGES.read_text()}---\n{yaml.safe_dump_all(documents)}")
    certificate = control_plane.folder / "certificates" / "apiserver"
    return (
        *(f"--config={config_path}", "--manage-all-nodes", "--cidr=10.244.0.0/16", "--node-lease-duration-seconds=0"),
        *(f"--server-address=127.0.0.1:{port}", f"--node-port={port}", "--node-ip=127.0.0.1"),
        *(f"--tls-cert-file={certificate}.crt", f"--tls-private-key-file={certificate}.key"),
    )


def _write_kubeconfig(file: Path, port: int, token: str, authority: Path) -> None:
    cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority": str(authority)}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "here", "cluster": cluster}],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "admin"}}],
        "current-context": "here",
    }
    file.touch(mode=0o600)
    file.write_text(yaml.safe_dump(config))
