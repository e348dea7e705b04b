"""The client of the Kubernetes API against a real API server; its nodes are simulated, and a pod's port is a server here."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from llm_serving import processes
from llm_serving.cli import main
from llm_serving.operations import cluster, kube_api
from llm_serving.operations.kube_api import NAMESPACE, POD, ApiError, Kind, KubeApi, is_ready
from llm_serving.settings.errors import Unavailable
from tests.control_plane import machines
from tests.control_plane.control_plane import ControlPlane

CONFIG_MAP = Kind("v1", "ConfigMap")

pytestmark = pytest.mark.timeout(300, func_only=True)


@pytest.fixture
def api(control_plane: ControlPlane) -> KubeApi:
    return KubeApi(control_plane.kubeconfig)


@pytest.fixture
def pod(control_plane: ControlPlane) -> Iterator[str]:
    """Name of a ready pod behind the Service `web`, whose port 80 is the pod's port `http`."""
    labels = {"app": "web"}
    container = {"name": "web", "image": "web:0", "ports": [{"name": "http", "containerPort": 8000}]}
    objects = [
        machines.build_plain("kube-api"),
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"selector": labels, "ports": [{"port": 80, "targetPort": "http"}]},
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "web-0", "namespace": "default", "labels": labels},
            "spec": {"nodeName": "kube-api", "containers": [container]},
        },
    ]
    control_plane.api.apply(objects)
    processes.wait_until(lambda: is_ready(control_plane.read(POD, "web-0", "default")), "web-0", 120)
    yield "web-0"
    control_plane.remove(*reversed(objects))


def build_config_map(name: str, **data: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "default"},
        "data": data,
    }


def test_objects_are_created_read_applied_and_deleted(api: KubeApi) -> None:
    created = api.create(build_config_map("one", key="a"))
    assert created["metadata"]["uid"]
    api.apply([build_config_map("one", other="b"), build_config_map("two", key="c")])
    found = api.find(CONFIG_MAP, "one", "default")
    assert found and found["data"] == {"key": "a", "other": "b"}, "what another program set stays"
    names = {item["metadata"]["name"] for item in api.list_objects(CONFIG_MAP, "default")}
    assert {"one", "two"} <= names
    maps = [build_config_map("one"), build_config_map("two"), build_config_map("never")]
    api.delete_objects([*maps, {"apiVersion": "no.example/v1", "kind": "Kind", "metadata": {"name": "x"}}], 60)
    assert api.find(CONFIG_MAP, "one", "default") is None


def test_a_refusal_says_what_was_asked_and_what_the_server_answered(api: KubeApi) -> None:
    with pytest.raises(ApiError) as error:
        api.create(build_config_map("Not_A_Name"))
    assert str(error.value).startswith('cannot create ConfigMap Not_A_Name: ConfigMap "Not_A_Name" is invalid: ')
    assert (error.value.status, error.value.exit_code) == (422, 3)


def test_fields_of_another_program_are_not_taken_over(api: KubeApi) -> None:
    api.create(build_config_map("owned", key="a"))
    try:
        with pytest.raises(ApiError, match="Apply failed with 1 conflict"):
            api.apply([build_config_map("owned", key="b")])
    finally:
        api.delete(CONFIG_MAP, "owned", "default")


def test_kinds_are_found_once_they_are_defined(api: KubeApi) -> None:
    assert api.has_kind(POD)
    assert not api.has_kind(Kind("karpenter.sh/v9", "NodePool"))
    with pytest.raises(ApiError, match="cannot look up the kind NodePool") as error:
        api.list_objects(Kind("karpenter.sh/v9", "NodePool"))
    assert error.value.status == 404


def test_a_wait_ends_with_the_change_and_otherwise_with_its_limit(api: KubeApi) -> None:
    ended = threading.Event()

    def change() -> None:
        """Change it again and again: the watch may begin late."""
        while not ended.wait(0.5):
            api.apply([build_config_map("waited", key=str(time.monotonic()))])

    thread = threading.Thread(target=change)
    thread.start()
    before = time.monotonic()
    try:
        api.wait_for_change(CONFIG_MAP, "default", fields="metadata.name=waited", limit_s=60)
        assert time.monotonic() - before < 60
        assert api.find(CONFIG_MAP, "waited", "default"), "the change ended it"
        ended.set()
        thread.join()
        api.wait_for_change(CONFIG_MAP, "default", fields="metadata.name=waited", limit_s=0)
    finally:
        ended.set()
        thread.join()
        api.delete(CONFIG_MAP, "waited", "default")


def test_an_object_that_stays_is_named_with_what_holds_it(api: KubeApi) -> None:
    held = build_config_map("held")
    held["metadata"]["finalizers"] = ["example.com/keep"]
    api.create(held)
    try:
        with pytest.raises(ApiError) as error:
            api.delete_objects([held], 0)
        assert str(error.value) == "ConfigMap held was not deleted in time; it waits for example.com/keep"
    finally:
        held["metadata"]["finalizers"] = []
        api._request("release", "patch", CONFIG_MAP, body=held, content_type="application/merge-patch+json")


def test_a_log_comes_by_lines_and_whole(api: KubeApi, control_plane: ControlPlane, pod: str) -> None:
    control_plane.pods_log.write_text(
        "".join(f"2026-11-01T00:00:00.000000000Z stdout F line {number} é\n" for number in range(3))
    )
    assert list(api.stream_log(pod, "default", lines=2)) == ["line 1 é\n", "line 2 é\n"]
    assert api.read_log(pod, "default") == "line 0 é\nline 1 é\nline 2 é\n"
    with pytest.raises(ApiError, match='cannot read the log of Pod none: pods "none" not found'):
        api.read_log("none", "default")


def test_connections_reach_a_ready_pod_of_the_service_by_the_name_of_its_port(api: KubeApi, pod: str) -> None:
    with api.forward_port("web", "default", 80) as port:
        for _ in range(3):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            with contextlib.closing(connection):
                connection.request("GET", "/v1/models")
                answer = connection.getresponse()
                assert (answer.status, "data" in json.load(answer)) == (200, True)
        # Each ends with its client.
        processes.wait_until(lambda: not list_forwarding_threads(), "the end of the connections", 90)


def test_a_command_in_a_container_returns_its_output_or_says_why_it_failed(api: KubeApi, pod: str) -> None:
    def run(*command: str, limit_s: float = 60) -> str:
        return api.run_command(pod, "default", "web", command, limit_s=limit_s)

    lines = run("sh", "-c", 'echo "$1" é; echo to stderr >&2', "sh", "a b").splitlines()
    assert sorted(lines) == ["a b é", "to stderr"]
    long_line = "é" * 10_000
    command = ["sh", "-c", 'read -r line; echo "$line"']
    assert api.run_command(pod, "default", "web", command, long_line, limit_s=60) == f"{long_line}\n"
    with pytest.raises(ApiError, match=r"cannot run a command in Pod web-0: .*exit 3.* it broke$"):
        run("sh", "-c", "echo it broke; exit 3")
    with pytest.raises(ApiError, match="cannot run a command in Pod web-0: it did not end within 1 s"):
        run("sleep", "30", limit_s=1)
    with pytest.raises(ApiError, match=r'cannot run a command in Pod none: .*"none" not found'):
        api.run_command("none", "default", "web", ["true"], limit_s=60)


def list_forwarding_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if "port forward" in thread.name]


def test_a_service_without_a_ready_pod_is_named(api: KubeApi) -> None:
    with (
        pytest.raises(ApiError, match="there is no Service web in namespace default"),
        api.forward_port("web", "default", 80),
    ):
        pass


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "file is empty"),
        ("kind: Config\ncurrent-context: gone\ncontexts: []\nclusters: []\nusers: []\n", "Expected object with name"),
    ],
)
def test_a_kubeconfig_that_names_no_cluster_is_one_message(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "kubeconfig").write_text(text)
    fix = "Fix: run aws eks update-kubeconfig --name CLUSTER, or set KUBECONFIG"
    with pytest.raises(ApiError, match=f"cannot reach the cluster: .*{reason}.*{fix}"):
        KubeApi(tmp_path / "kubeconfig")


def test_an_unexpected_answer_leaves_nothing_in_the_shared_temporary_folder(
    control_plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert KubeApi(control_plane.kubeconfig).find(NAMESPACE, "default")
    assert list(tmp_path.glob("*.json")) == [], "its list of kinds would be read from there by the next"


def write_kubeconfig(file: Path, cluster: str) -> Path:
    """A kubeconfig whose current context, of a name of the user's own, leads to a cluster that is not there."""
    context = {"name": "work", "context": {"cluster": cluster, "user": "me"}}
    clusters = [{"name": cluster, "cluster": {"server": "https://127.0.0.1:9"}}]
    config = {"clusters": clusters, "contexts": [context], "users": [{"name": "me", "user": {}}]}
    file.write_text(yaml.safe_dump({"current-context": "work", **config}))
    return file


def build_fleet(region: str, name: str) -> Any:
    return SimpleNamespace(region=region, name=name, eks=SimpleNamespace(cluster=None))


PROD = "arn:aws:eks:us-west-2:123456789012:cluster/prod"


@pytest.mark.parametrize(("region", "name"), [("us-west-2", "dev"), ("eu-west-1", "prod")])
def test_a_kubeconfig_of_another_fleet_s_cluster_is_refused(tmp_path: Path, region: str, name: str) -> None:
    kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", PROD)
    cluster.require_own(build_fleet("us-west-2", "prod"), kubeconfig)
    with pytest.raises(Unavailable) as error:
        cluster.require_own(build_fleet(region, name), kubeconfig)
    assert str(error.value) == (
        f"the kubeconfig leads to {PROD}, and the fleet's cluster is {name} in {region}. Nothing was changed. "
        f"Fix: run aws eks update-kubeconfig --name {name} --region {region}, or set KUBECONFIG."
    )


def test_an_empty_variable_names_no_kubeconfig(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for kubectl and helm."""
    monkeypatch.setenv("KUBECONFIG", "")
    assert kube_api.locate_kubeconfig(None) == Path("~/.kube/config")


def test_a_cluster_of_any_other_name_may_be_the_fleet_s(tmp_path: Path) -> None:
    cluster.require_own(build_fleet("us-west-2", "dev"), write_kubeconfig(tmp_path / "kubeconfig", "kind-dev"))
    cluster.require_own(build_fleet("us-west-2", "dev"), tmp_path / "none")


@pytest.mark.parametrize(
    "command",
    [
        ("platform", "install"),
        ("platform", "remove", "--yes"),
        ("deploy", "mine", "--target", "eks", "--yes"),
        ("diff", "mine", "--target", "eks"),
        ("status", "mine", "--target", "eks"),
        ("destroy", "mine", "--target", "eks", "--yes"),
    ],
)
def test_no_command_touches_another_fleet_s_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    """A release of the same name may be there, as of a fleet `prod` beside a fleet `dev`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "kubeconfig", PROD)))
    (tmp_path / "bin").mkdir()
    calls, helm = tmp_path / "calls", tmp_path / "bin" / "helm"
    helm.write_text(f'#!/bin/sh\n[ "$1" = version ] && echo v3.22.0 && exit\necho "$@" >>{calls}\n')
    helm.chmod(0o755)
    monkeypatch.setenv("PATH", str(helm.parent), prepend=":")
    assert main.run(["new", "mine", "--from", "aggregated"]) == 0
    file = tmp_path / "fleet.yaml"
    file.write_text(file.read_text().replace("name: demo", "name: dev"))
    capsys.readouterr()
    assert main.run([*command, "--fleet", "fleet.yaml"]) == 3
    assert f"the kubeconfig leads to {PROD}, and the fleet's cluster is dev in us-west-2" in capsys.readouterr().err
    assert not calls.exists()
