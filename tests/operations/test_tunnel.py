"""The tunnel to a private cluster: real arguments, and stand-ins for aws and the API that forward nothing."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_serving import processes
from llm_serving.aws.session import AwsSession
from llm_serving.cli import main
from llm_serving.operations import cluster, tunnel
from llm_serving.operations.kube_api import ApiError, KubeApi
from llm_serving.operations.tunnel import Tunnel
from llm_serving.settings.errors import Unavailable
from tests.control_plane.control_plane import ControlPlane
from tests.operations.conftest import Recorder
from tests.operations.test_cluster import ARN, write_fleet, write_kubeconfig

HOST = "0A1B2C.gr7.us-west-2.eks.amazonaws.com"

_STAND_IN = """#!{python}
import json, signal, socket, sys
parameters = json.loads(sys.argv[sys.argv.index("--parameters") + 1])
listener = socket.create_server(("127.0.0.1", int(parameters["localPortNumber"][0])))
signal.pause()
"""


class Client:
    """EKS and EC2 with one cluster and its nodes."""

    def __init__(self, instances: list[str]) -> None:
        self.instances = instances
        self.filters: list[dict[str, Any]] = []

    def describe_cluster(self, *, name: str) -> dict[str, Any]:
        return {"cluster": {"name": name, "arn": ARN, "endpoint": f"https://{HOST}"}}

    def describe_instances(self, *, Filters: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: N803
        self.filters = Filters
        return {"Reservations": [{"Instances": [{"InstanceId": name}]} for name in self.instances]}


def connect_to(client: Client, monkeypatch: pytest.MonkeyPatch) -> AwsSession:
    monkeypatch.setattr(AwsSession, "client", lambda self, service: client)  # noqa: ARG005
    return AwsSession("us-west-2")


def install_stand_in(recorder: Recorder, text: str = _STAND_IN) -> None:
    """Puts an `aws` on PATH that listens on the port as Session Manager's plugin does, and forwards nothing."""
    program = recorder.folder / "aws"
    program.write_text(text.format(python=sys.executable))
    program.chmod(0o755)


def test_the_session_forwards_to_the_endpoint_through_a_running_system_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(["i-0b", "i-0a"])
    route = tunnel.plan(connect_to(client, monkeypatch), write_fleet(tmp_path), 8443)
    assert route == Tunnel(ARN, HOST, "i-0a", 8443)
    assert {row["Name"]: row["Values"] for row in client.filters} == {
        "tag:fleet": ["small"],
        "tag:pool": ["system"],
        "instance-state-name": ["running"],
    }
    command = tunnel.build_command(route, "us-west-2")
    assert command[:5] == ("aws", "ssm", "start-session", "--target", "i-0a")
    assert command[5:7] == ("--document-name", "AWS-StartPortForwardingSessionToRemoteHost")
    assert json.loads(command[8]) == {"host": [HOST], "portNumber": ["443"], "localPortNumber": ["8443"]}


def test_without_a_running_system_node_there_is_no_way_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unavailable, match="no system node of the cluster small is running in us-west-2"):
        tunnel.plan(connect_to(Client([]), monkeypatch), write_fleet(tmp_path), 8443)


def test_while_it_is_open_the_kubeconfig_goes_through_the_tunnel_and_checks_the_endpoints_name(
    recorder: Recorder, tmp_path: Path
) -> None:
    recorder.install("helm")
    install_stand_in(recorder)
    aws, fleet, data = AwsSession("us-west-2"), write_fleet(tmp_path), tmp_path / "data"
    (port,) = processes.claim_free_ports(1)
    with tunnel.forward(Tunnel(ARN, HOST, "i-0a", port), aws, data):
        write_kubeconfig(data / "kubeconfig", f"https://{HOST}")
        assert tunnel.find_open(data) == Tunnel(ARN, HOST, "i-0a", port)
        recorder.install("aws")
        cluster.connect(aws, fleet, data)
    config = yaml.safe_load((data / "kubeconfig").read_text())
    assert config["clusters"] == [
        {"name": ARN, "cluster": {"server": f"https://127.0.0.1:{port}", "tls-server-name": HOST}}
    ]
    assert recorder.calls[1:] == [["api", "open", str(data / "kubeconfig")], ["api", "ready"]]
    assert tunnel.find_open(data) is None
    assert processes.is_free(port)


@pytest.mark.parametrize("is_reachable", [True, False])
def test_a_run_opens_the_tunnel_itself_where_this_machine_does_not_reach_the_endpoint(
    is_reachable: bool, recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder.install("session-manager-plugin")
    install_stand_in(recorder)
    monkeypatch.setattr(tunnel, "is_reachable", lambda host: is_reachable and host == HOST)
    aws, fleet, data = connect_to(Client(["i-0a"]), monkeypatch), write_fleet(tmp_path), tmp_path / "data"
    with cluster.reach(aws, fleet, data):
        assert (tunnel.find_open(data) is None) is is_reachable
        with cluster.reach(aws, fleet, data):  # one that is open does for all
            pass
        assert (tunnel.find_open(data) is None) is is_reachable
        with cluster.reach(aws, fleet, tmp_path / "another fleet's"):
            assert (tunnel.find_open(tmp_path / "another fleet's") is None) is is_reachable
    assert tunnel.find_open(data) is None


def test_an_endpoint_is_reachable_where_a_connection_opens() -> None:
    assert not tunnel.is_reachable("nowhere.invalid")


def test_a_session_that_does_not_start_is_reported_with_its_reason(recorder: Recorder, tmp_path: Path) -> None:
    install_stand_in(recorder, '#!{python}\nimport sys\nsys.exit("TargetNotConnected: i-0a is not connected")\n')
    route = Tunnel(ARN, HOST, "i-0a", processes.claim_free_ports(1)[0])
    with (
        pytest.raises(Unavailable, match="did not forward the port: TargetNotConnected: i-0a is not connected"),
        tunnel.forward(route, AwsSession("us-west-2"), tmp_path / "data"),
    ):
        pass


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        route = Tunnel(ARN, HOST, "i-0a", port)
        with (
            pytest.raises(Unavailable, match=f"port {port} of this machine is taken"),
            tunnel.forward(route, AwsSession("us-west-2"), tmp_path / "data"),
        ):
            pass


def test_the_command_line_shows_the_session_without_opening_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    connect_to(Client(["i-0a"]), monkeypatch)
    monkeypatch.chdir(tmp_path)
    write_fleet(tmp_path)
    assert main.run(["platform", "tunnel", "--plan", "--port", "9443"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("aws ssm start-session --target i-0a --document-name AWS-StartPortForwardingSession")
    assert '"localPortNumber": ["9443"]' in out
    assert not (tmp_path / ".blueprint").exists()


def test_the_api_servers_certificate_must_have_the_endpoints_name(control_plane: ControlPlane, tmp_path: Path) -> None:
    config = yaml.safe_load(control_plane.kubeconfig.read_text())
    server = config["clusters"][0]["cluster"]["server"]
    for host, is_right in (("kubernetes.default.svc", True), ("other.example", False)):
        kubeconfig = tmp_path / host
        kubeconfig.write_text(yaml.safe_dump(config))
        tunnel.redirect(kubeconfig, Tunnel("here", host, "i-0a", int(server.rpartition(":")[2])))
        with contextlib.nullcontext() if is_right else pytest.raises(ApiError, match="Hostname mismatch"):
            KubeApi(kubeconfig).require_ready()
