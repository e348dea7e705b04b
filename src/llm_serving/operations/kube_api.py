"""The Kubernetes API of a cluster, through its official client.

Objects are dictionaries, as manifests have them. The kubeconfig decides the cluster and the user, as it does for helm.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

from llm_serving.settings.errors import Unavailable

Manifest = dict[str, Any]

_TIMEOUT_S = 60.0
"""Longest time until the API server answers; after that the cluster counts as unreachable."""

_BUSY_LIMIT_S, _BUSY_PAUSE_S = 30.0, 1.0
"""How long, and how often, it is asked again while it answers 429: it prepares to store a kind, or is too busy."""

_POLL_S = 5.0
"""Longest time between two looks at an object of which no change is heard."""

_FIELD_MANAGER = "kubectl"
"""Owner of the fields that are applied: what `kubectl apply` on the same manifest would not conflict with."""

_NO_CACHE = f"{os.devnull}/discovery"
"""Where nothing can be kept: the client's own choice is a file in the shared /tmp, whose name everybody knows."""


class Kind(NamedTuple):
    """A kind of object, as its manifest names it."""

    api_version: str
    kind: str


NAMESPACE = Kind("v1", "Namespace")
POD = Kind("v1", "Pod")
SERVICE = Kind("v1", "Service")
CRD = Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition")


class ApiError(Unavailable):
    """The API server refused a request, or did not answer.

    Attributes:
        status: HTTP status; 0 where there was no answer.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class KubeApi:
    """One cluster. Its methods may be called from several threads.

    Every method raises `ApiError` if the API server refuses, or does not answer within a minute.
    """

    def __init__(self, kubeconfig: Path) -> None:
        """Read the kubeconfig and the cluster's kinds.

        Raises:
            ApiError: the kubeconfig names no cluster or gets no token, or the API server does not answer.
        """
        from kubernetes.dynamic import DynamicClient

        with _translate_errors("reach the cluster"):
            self._client = _open_client(kubeconfig)
            self._dynamic = DynamicClient(self._client, cache_file=_NO_CACHE)

    def require_ready(self) -> None:
        """Ask whether the API server is ready to serve."""
        with _translate_errors("ask whether it is ready"):
            self._dynamic.request("get", "/readyz", serialize=False, _request_timeout=15)

    def list_objects(
        self, kind: Kind, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> list[Manifest]:
        """List objects; those of all namespaces where there is none."""
        response = self._list(kind, namespace, _build_selectors(labels, fields))
        return [{"apiVersion": kind.api_version, "kind": kind.kind, **item} for item in response["items"]]

    def find(self, kind: Kind, name: str, namespace: str | None = None) -> Manifest | None:
        with _ignore_missing():
            return self._request(f"get {kind.kind} {name}", "get", kind, name=name, namespace=namespace)
        return None

    def has_kind(self, kind: Kind) -> bool:
        with _ignore_missing():
            self._resolve(kind)
            return True
        return False

    def list_versions(self, kind: Kind) -> list[str]:
        """List the versions of a kind that the API server knows."""
        with _translate_errors(f"look up the kind {kind.kind}"):
            resources = self._dynamic.resources.search(group=kind.api_version.rpartition("/")[0], kind=kind.kind)
        return sorted({resource.group_version for resource in resources})

    def create(self, manifest: Manifest) -> Manifest:
        """Create an object, and return it as the API server keeps it."""
        kind = _get_kind(manifest)
        return self._request(f"create {_describe_manifest(manifest)}", "create", kind, body=manifest)

    def apply(self, manifests: Iterable[Manifest], *, force: bool = False) -> None:
        """Create or update objects by server-side apply, in order.

        Args:
            force: take over fields that another program owns, which are refused otherwise.
        """
        for manifest in manifests:
            self._apply(manifest, force_conflicts=force)

    def preview(self, manifest: Manifest) -> Manifest:
        """Return what an object would be after a server-side apply, which changes nothing."""
        return self._apply(manifest, force_conflicts=True, dry_run="All")

    def _apply(self, manifest: Manifest, **options: Any) -> Manifest:
        action, kind = f"apply {_describe_manifest(manifest)}", _get_kind(manifest)
        return self._request(action, "server_side_apply", kind, body=manifest, field_manager=_FIELD_MANAGER, **options)

    def apply_crds(self, crds: Sequence[Manifest]) -> None:
        """Create or update CRDs, whoever made them, and wait until the API server serves their kinds."""
        self.apply(crds, force=True)
        deadline = time.monotonic() + _TIMEOUT_S
        for crd in crds:
            name = crd["metadata"]["name"]
            while not _has_condition(self.find(CRD, name) or {}, "Established"):
                if time.monotonic() > deadline:
                    raise ApiError(f"{_describe_manifest(crd)} was not established in time")
                self.wait_for_change(CRD, fields=f"metadata.name={name}", limit_s=_POLL_S)

    def delete(self, kind: Kind, name: str, namespace: str | None = None) -> None:
        """Have an object and what it owns go, the latter first; do nothing if there is none."""
        action, body = f"delete {kind.kind} {name}", {"propagationPolicy": "Foreground"}
        with _ignore_missing():
            self._request(action, "delete", kind, name=name, namespace=namespace, body=body)

    def delete_all(self, kind: Kind, *, fields: str = "", timeout_s: float) -> None:
        """Delete the objects of a kind in all namespaces, and wait until they are gone.

        Raises:
            ApiError: some were not gone in time; the message names one.
        """
        self.delete_objects(self.list_objects(kind, fields=fields), timeout_s)

    def delete_objects(self, objects: Iterable[Manifest], timeout_s: float) -> None:
        """Delete objects, and wait until they are gone; do nothing about those that are not there.

        Raises:
            ApiError: some were not gone in time; the message names one.
        """
        deadline = time.monotonic() + timeout_s
        deletable = [item for item in objects if self.has_kind(_get_kind(item))]
        for item in deletable:
            self.delete(_get_kind(item), item["metadata"]["name"], item["metadata"].get("namespace"))
        for item in deletable:
            self._wait_until_gone(item, deadline)

    def _wait_until_gone(self, item: Manifest, deadline: float) -> None:
        kind, namespace = _get_kind(item), item["metadata"].get("namespace")
        fields = f"metadata.name={item['metadata']['name']}"
        with _ignore_missing():  # the kind may go, too
            while (objects := self._list(kind, namespace, _build_selectors("", fields)))["items"]:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    [manifest] = objects["items"]
                    finalizers = manifest["metadata"].get("finalizers", ())
                    holders = [entry for entry in finalizers if entry != "foregroundDeletion"]
                    waits_for = ", ".join(holders) or "what it owns"
                    raise ApiError(f"{_describe_manifest(item)} was not deleted in time; it waits for {waits_for}")
                self.wait_for_change(kind, namespace, fields=fields, limit_s=min(left_s, _POLL_S), since=objects)

    def wait_for_change(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        limit_s: float,
        since: Manifest | None = None,
    ) -> None:
        """Wait until an object changes, appears or goes, or `limit_s` seconds (rounded up) are over.

        Args:
            since: a list of them as they were; as they are where left out.
        """
        selectors = _build_selectors(labels, fields)
        listed = since or self._list(kind, namespace, selectors)
        with _translate_errors(f"watch {kind.kind}s"):
            response = self._dynamic.get(
                self._resolve(kind),
                namespace=namespace,
                watch=True,
                resource_version=listed["metadata"]["resourceVersion"],
                timeout_seconds=int(limit_s) + 1,
                serialize=False,
                _request_timeout=limit_s + _TIMEOUT_S,
                **selectors,
            )
            with contextlib.closing(response):
                next(response.stream(), None)

    def read_log(self, pod: str, namespace: str, *, lines: int | None = None) -> str:
        """Return the last lines of a pod's log; all of them where `lines` is None."""
        return "".join(self.stream_log(pod, namespace, lines=lines))

    def stream_log(
        self, pod: str, namespace: str, *, container: str | None = None, lines: int | None = None, follow: bool = False
    ) -> Iterator[str]:
        """Yield the lines of a container's log, from the last `lines` on; with `follow` until the container ends."""
        from kubernetes.client import CoreV1Api

        with _translate_errors(f"read the log of Pod {pod}"):
            response = CoreV1Api(self._client).read_namespaced_pod_log(
                *(pod, namespace),
                container=container,
                tail_lines=lines,
                follow=follow,
                _preload_content=False,
                _request_timeout=(_TIMEOUT_S, None if follow else _TIMEOUT_S),
            )
            with contextlib.closing(response):
                partial_line = b""
                for chunk in response.stream():
                    *whole, partial_line = (partial_line + chunk).split(b"\n")
                    yield from (f"{line.decode(errors='replace')}\n" for line in whole)
                if partial_line:
                    yield partial_line.decode(errors="replace")

    def run_command(
        self, pod: str, namespace: str, container: str, command: Sequence[str], line: str = "", *, limit_s: float
    ) -> str:
        """Run a command in a container, and return what it printed.

        Args:
            line: what it reads from its input, which the cluster's audit log does not have, as it has the command.

        Raises:
            ApiError: it did not start, failed, or did not end within `limit_s` seconds.
        """
        from kubernetes.stream import stream
        from kubernetes.stream.ws_client import ERROR_CHANNEL

        action = f"run a command in Pod {pod}"
        with _translate_errors(action):
            session = stream(
                *(self._open_streams().connect_get_namespaced_pod_exec, pod, namespace),
                container=container,
                command=list(command),
                stdin=bool(line),
                stdout=True,
                stderr=True,
                tty=False,
                _preload_content=False,
            )
            with contextlib.closing(session):
                if line:
                    session.write_stdin(f"{line}\n")
                session.run_forever(timeout=limit_s)
                if session.is_open():
                    raise ApiError(f"cannot {action}: it did not end within {limit_s:.0f} s")
                status = json.loads(session.read_channel(ERROR_CHANNEL) or "{}")
                output: str = session.read_all()
        if status.get("status") == "Failure":
            raise ApiError(f"cannot {action}: {' '.join([status['message'], *output.split()[-50:]])}")
        return output

    @contextlib.contextmanager
    def forward_port(self, service: str, namespace: str, port: int, pod_port: int = 0) -> Iterator[int]:
        """Yield a port of the loopback interface that leads to a service: each connection to a pod that is ready then.

        Args:
            pod_port: another one of the pod than that behind the service's.

        Raises:
            ApiError: there is no such service, or none of its pods is ready.
        """
        self._choose_backend(service, namespace, port)

        def connect() -> socket.socket:
            pod, its_port = self._choose_backend(service, namespace, port)
            return self._open_connection(pod, namespace, pod_port or its_port)

        with _Forwarder(connect) as server:
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
            thread.start()
            try:
                yield server.server_address[1]
            finally:
                server.shutdown()
                thread.join()

    def _open_connection(self, pod: str, namespace: str, port: int) -> socket.socket:
        from kubernetes.stream import portforward

        with _translate_errors(f"forward a port to Pod {pod}"):
            connection: socket.socket = portforward(
                self._open_streams().connect_get_namespaced_pod_portforward, pod, namespace, ports=str(port)
            ).socket(port)
        return connection

    def _open_streams(self) -> Any:
        """Return a client for one stream, whose function exchanges a method of its client for the time of the call."""
        from kubernetes.client import ApiClient, CoreV1Api

        return CoreV1Api(ApiClient(self._client.configuration))

    def _choose_backend(self, service: str, namespace: str, port: int) -> tuple[str, int]:
        """Return the name of a service's first ready pod, and the pod's port behind the service's."""
        manifest = self.find(SERVICE, service, namespace)
        if manifest is None:
            raise ApiError(f"there is no Service {service} in namespace {namespace}", 404)
        labels = ",".join(f"{key}={value}" for key, value in manifest["spec"]["selector"].items())
        ready = [pod for pod in self.list_objects(POD, namespace, labels=labels) if is_ready(pod)]
        if not ready:
            raise ApiError(f"Service {service} in namespace {namespace} has no ready pod")
        [target] = [entry["targetPort"] for entry in manifest["spec"]["ports"] if entry["port"] == port]
        ports = {
            entry.get("name"): entry["containerPort"]
            for container in ready[0]["spec"]["containers"]
            for entry in container.get("ports", ())
        }
        return ready[0]["metadata"]["name"], ports.get(target, target)

    def _list(self, kind: Kind, namespace: str | None, selectors: dict[str, str | None]) -> Manifest:
        return self._request(f"list {kind.kind}s", "get", kind, namespace=namespace, **selectors)

    def _request(self, action: str, method: str, kind: Kind, **arguments: Any) -> Manifest:
        """Send a request, again while the server is busy: so it is with a kind that was installed seconds ago."""
        deadline = time.monotonic() + _BUSY_LIMIT_S
        while True:
            try:
                with _translate_errors(action):
                    resource = self._resolve(kind)
                    response = getattr(self._dynamic, method)(
                        resource, serialize=False, _request_timeout=_TIMEOUT_S, **arguments
                    )
                    content: Manifest = json.loads(response.data)
                return content
            except ApiError as error:
                if error.status != HTTPStatus.TOO_MANY_REQUESTS or time.monotonic() > deadline:
                    raise
            time.sleep(_BUSY_PAUSE_S)

    def _resolve(self, kind: Kind) -> Any:
        with _translate_errors(f"look up the kind {kind.kind}"):
            return self._dynamic.resources.get(api_version=kind.api_version, kind=kind.kind)


def open_api(kubeconfig: Path | None) -> KubeApi:
    """Return the API of the kubeconfig's cluster, which is asked once for its kinds; of the user's own where None.

    Raises:
        ApiError: as of `KubeApi`.
    """
    return _open(locate_kubeconfig(kubeconfig))


def locate_kubeconfig(kubeconfig: Path | None) -> Path:
    # The client's own default is read when it is imported.
    return Path(kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config")


@functools.cache
def read_cluster_name(kubeconfig: Path) -> str:
    """Return the name of a kubeconfig's current cluster; "" where there is none, as whoever opens it says."""
    from kubernetes import config

    with contextlib.suppress(config.ConfigException, OSError):
        _, active = config.list_kube_config_contexts(str(kubeconfig))
        return str(active["context"]["cluster"])
    return ""


@functools.cache
def _open(kubeconfig: Path) -> KubeApi:
    return KubeApi(kubeconfig)


def is_ready(pod: Manifest) -> bool:
    return _has_condition(pod, "Ready")


def _has_condition(item: Manifest, condition: str) -> bool:
    conditions = item.get("status", {}).get("conditions", ())
    return any(entry["type"] == condition and entry["status"] == "True" for entry in conditions)


class _Forwarder(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self, connect: Callable[[], socket.socket]) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.connect = connect


class _Connection(socketserver.BaseRequestHandler):
    server: _Forwarder

    def handle(self) -> None:
        try:
            backend = self.server.connect()
        except ApiError:  # the client sees its connection end, as where no pod listens
            return
        with contextlib.closing(backend):
            threading.Thread(target=_copy_bytes, args=(self.request, backend), daemon=True).start()
            _copy_bytes(backend, self.request)


def _copy_bytes(source: socket.socket, sink: socket.socket) -> None:
    """Copy bytes until the source ends, which ends the sink."""
    with contextlib.suppress(OSError):
        while block := source.recv(65536):
            sink.sendall(block)
        sink.shutdown(socket.SHUT_WR)


def _build_selectors(labels: str, fields: str) -> dict[str, str | None]:
    return {"label_selector": labels or None, "field_selector": fields or None}


def _get_kind(manifest: Manifest) -> Kind:
    return Kind(manifest["apiVersion"], manifest["kind"])


def _describe_manifest(manifest: Manifest) -> str:
    return f"{manifest['kind']} {manifest['metadata']['name']}"


def _open_client(kubeconfig: Path) -> Any:
    from kubernetes import client, config

    settings = client.Configuration()
    settings.retries = False
    return config.new_client_from_config(str(kubeconfig), persist_config=False, client_configuration=settings)


@contextlib.contextmanager
def _ignore_missing() -> Iterator[None]:
    """Go on after the block where the cluster has no such object, or no such kind."""
    try:
        yield
    except ApiError as error:
        if error.status != 404:
            raise


@contextlib.contextmanager
def _translate_errors(action: str) -> Iterator[None]:
    from kubernetes.client import ApiException
    from kubernetes.config import ConfigException
    from kubernetes.dynamic.exceptions import ResourceNotFoundError
    from urllib3.exceptions import HTTPError

    try:
        yield
    except ApiException as error:
        raise ApiError(f"cannot {action}: {_read_message(error)}", error.status or 0) from None
    except ResourceNotFoundError as error:
        raise ApiError(f"cannot {action}: {error}", 404) from None
    except AttributeError as error:  # client 36.0.3 stumbles over an exception without a body: of TLS
        if not isinstance(error.__context__, ApiException):
            raise
        raise ApiError(f"cannot {action}: {_read_message(error.__context__)}") from None
    except ConfigException as error:
        fix = "run aws eks update-kubeconfig --name CLUSTER, or set KUBECONFIG"
        raise ApiError(f"cannot {action}: {str(error).rstrip('.')}. Fix: {fix}.") from None
    except (HTTPError, OSError) as error:
        raise ApiError(f"cannot {action}: {error}") from None


def _read_message(error: Any) -> str:
    """Return what the API server says of a refusal; that of a stream is the end of the client's reason."""
    try:
        return str(json.loads(error.body or str(error.reason).rpartition(" -+-+- ")[2])["message"])
    except (KeyError, TypeError, ValueError):
        return " ".join(str(error.reason or error.status).split())
