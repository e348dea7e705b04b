"""A way to a private cluster from outside its VPC: a port of this machine, forwarded by Session Manager through a node.

While it is open, `cluster.connect` and all that goes through it take the port in place of the endpoint. The certificate
is still the endpoint's own.

Source: AWS Systems Manager user guide, "Starting a session (port forwarding to remote host)", 2026-11.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

from llm_serving import console, processes
from llm_serving.aws import session
from llm_serving.aws.session import AwsSession
from llm_serving.fleet import names
from llm_serving.fleet.model import Fleet
from llm_serving.settings.errors import Unavailable

TOOLS: Mapping[str, str] = {
    "aws": "https://docs.aws.amazon.com/cli/latest/userguide/getting-started-install.html",
    "session-manager-plugin": "https://docs.aws.amazon.com/systems-manager/latest/userguide/"
    "session-manager-working-with-install-plugin.html",
}

DEFAULT_PORT = 8443

_DOCUMENT = "AWS-StartPortForwardingSessionToRemoteHost"
_START_TIMEOUT_S = 60.0
_CONNECT_TIMEOUT_S = 5.0
_FILE = "tunnel.json"


@dataclass(frozen=True)
class Tunnel:
    """A forwarded port, and what is behind it."""

    cluster_arn: str
    host: str
    """Name of the cluster's endpoint, which its certificate has."""

    instance: str
    """The node that forwards."""

    port: int
    """Of the loopback interface."""


def plan(aws: AwsSession, fleet: Fleet, port: int) -> Tunnel:
    """Find the cluster's endpoint and a system node.

    Raises:
        Unavailable: there is no cluster or no running node, or AWS cannot be asked.
    """
    name = names.format_cluster_name(fleet)
    with session.translate_errors():
        cluster = aws.client("eks").describe_cluster(name=name)["cluster"]
        filters = {"tag:fleet": fleet.name, "tag:pool": "system", "instance-state-name": "running"}
        reservations = aws.client("ec2").describe_instances(
            Filters=[{"Name": key, "Values": [value]} for key, value in filters.items()]
        )["Reservations"]
    instances = sorted(instance["InstanceId"] for row in reservations for instance in row["Instances"])
    if not instances:
        raise Unavailable(f"no system node of the cluster {name} is running in {fleet.region}")
    return Tunnel(cluster["arn"], cluster["endpoint"].removeprefix("https://"), instances[0], port)


def build_command(tunnel: Tunnel, region: str) -> tuple[str, ...]:
    """Return the command that forwards the port until it is stopped."""
    parameters = {"host": [tunnel.host], "portNumber": ["443"], "localPortNumber": [str(tunnel.port)]}
    return (
        *("aws", "ssm", "start-session", "--target", tunnel.instance, "--document-name", _DOCUMENT),
        *("--parameters", json.dumps(parameters), "--region", region),
    )


@contextlib.contextmanager
def forward(tunnel: Tunnel, aws: AwsSession, data: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Forward the port, and yield the process that does.

    Args:
        data: the fleet's data directory.

    Raises:
        Unavailable: the port is taken, or the session did not start.
    """
    if not processes.is_free(tunnel.port):
        raise Unavailable(f"port {tunnel.port} of this machine is taken. Fix: set --port to a free one.")
    file = data / _FILE
    with run(build_command(tunnel, aws.region), tunnel.port, aws, data) as process:
        file.write_text(json.dumps(asdict(tunnel)))
        try:
            yield process
        finally:
            file.unlink(missing_ok=True)


@contextlib.contextmanager
def run(command: Sequence[str], port: int, aws: AwsSession, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command of Session Manager that forwards a port of this machine, and yield its process once it does.

    Args:
        folder: of its log.

    Raises:
        Unavailable: the session did not start; with its last line.
    """
    log = folder / "tunnel.log"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = processes.spawn(command, environment=aws.child_env, output=output)
    try:
        processes.wait_until(lambda: _is_listening(process, port, log), "the tunnel", _START_TIMEOUT_S)
        yield process
    finally:
        processes.stop(process)


def is_reachable(host: str) -> bool:
    """Return whether this machine connects to an endpoint without a tunnel."""
    try:
        with socket.create_connection((host, 443), timeout=_CONNECT_TIMEOUT_S):
            return True
    except OSError:
        return False


def _is_listening(process: subprocess.Popen[bytes], port: int, log: Path) -> bool:
    if process.poll() is not None:
        lines = log.read_text(errors="replace").strip().splitlines()[-1:] or ["no output"]
        raise Unavailable(f"Session Manager did not forward the port: {lines[0]}")
    return not processes.is_free(port)


def find_open(data: Path) -> Tunnel | None:
    """Return the fleet's open tunnel; None where there is none, or its process is gone."""
    file = data / _FILE
    if not file.exists():
        return None
    tunnel = Tunnel(**json.loads(file.read_text()))
    return None if processes.is_free(tunnel.port) else tunnel


def redirect(kubeconfig: Path, tunnel: Tunnel) -> None:
    """Lead the kubeconfig's cluster to the forwarded port; its certificate has the endpoint's own name."""
    config = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))
    [cluster] = [entry["cluster"] for entry in config["clusters"] if entry["name"] == tunnel.cluster_arn]
    cluster |= {"server": f"https://127.0.0.1:{tunnel.port}", "tls-server-name": tunnel.host}
    kubeconfig.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")


def describe_use(tunnel: Tunnel, kubeconfig: Path) -> str:
    """Return how other programs reach the cluster while the tunnel is open."""
    return (
        f"{tunnel.host} is open at 127.0.0.1:{tunnel.port} until Ctrl+C; in another terminal:\n"
        f"  export KUBECONFIG={console.shorten_path(kubeconfig.absolute())}"
    )
