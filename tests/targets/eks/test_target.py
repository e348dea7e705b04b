"""Deploying to EKS: the command line, the real helm and kubectl, and a real control plane.

What a machine does is played: no container runs, so a pod is ready at once, or fails, as its annotation says. Behind the
tunnel to a pod answers a server with known delays. That no pod is ready before its model has answered is the probes'
matter, and tests/charts/test_answer.py's.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from llm_serving import go_programs, processes
from llm_serving.cli import main
from llm_serving.console import CommandFailed
from llm_serving.fleet.loading import read as read_fleet
from llm_serving.settings.errors import Unavailable
from llm_serving.targets.eks import target
from llm_serving.targets.on_aws.plan import Plan
from tests.control_plane import machines
from tests.control_plane.control_plane import ControlPlane

ROOT = Path(__file__).resolve().parents[3]
HERE = ("--namespace", "serving")
GPUS = 3
"""Machines of the pool `general`, of one accelerator each; the pattern takes two."""

pytestmark = pytest.mark.timeout(120, func_only=True)  # the fixture may wait for a build


class Said(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


Blueprint = Callable[..., Said]


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Machines of the pool that the pattern takes, and one without an accelerator; nothing is deployed."""
    fleet = read_fleet(ROOT / "fleet.yaml").value
    nodes = [machines.plain("plain"), *machines.of_pool(fleet, "general", GPUS)]
    control_plane.do("create", "--filename=-", told=nodes)
    yield control_plane
    uninstall(control_plane, "mine")
    control_plane.do("delete", "nodes", "--all")


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a fleet and the blueprint `mine`, where the user stands."""
    folder = tmp_path / "work"
    folder.mkdir()
    shutil.copytree(ROOT / "blueprints" / "aggregated", folder / "mine")
    shutil.copy(ROOT / "fleet.yaml", folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr(target, "_EVERY_S", 0.4)
    return folder


class Clock:
    """The time that the target goes by."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_s

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@pytest.fixture
def late_when(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has the limit of a start, half an hour, be over as soon as the cluster says all of some words."""
    clock, look = Clock(), target._late
    monkeypatch.setattr(target, "time", clock)

    def set_up(*words: str) -> None:
        def late(plan: Plan) -> Iterator[str]:
            found = list(look(plan))
            if not clock.ahead_s and all(word in "\n".join([*found, *target._why(plan)]) for word in words):
                clock.ahead_s = 3600
            return iter(found)

        monkeypatch.setattr(target, "_late", late)

    return set_up


@pytest.fixture
def blueprint(capfd: pytest.CaptureFixture[str]) -> Blueprint:
    """The command line."""

    def run(command: str, *words: str, folder: str = "mine") -> Said:
        capfd.readouterr()
        code = main.run([command, folder, "--target", "eks", *words])
        said = capfd.readouterr()
        return Said(code, said.out, said.err)

    return run


@pytest.fixture
def led(cluster: ControlPlane, work: Path, monkeypatch: pytest.MonkeyPatch) -> ControlPlane:
    """The cluster, to which helm and kubectl lead."""
    for key, value in cluster.environment.items():
        monkeypatch.setenv(key, value)
    return cluster


@pytest.fixture
def up(led: ControlPlane, blueprint: Blueprint) -> None:
    """`mine` is up as the pattern says; a test that changes it leaves it so."""
    found = led.ask(
        "get", "deployment/mine-worker", *HERE, "--output=jsonpath={.spec.replicas} {.status.readyReplicas}"
    )
    if found.stdout != "2 2":
        said = blueprint("deploy", "--yes")
        assert said.code == 0, said.err


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def pods(cluster: ControlPlane) -> dict[str, list[dict[str, Any]]]:
    """The release's pods by role."""
    found: dict[str, list[dict[str, Any]]] = {}
    for one in cluster.read("pods", *HERE, "--selector=app.kubernetes.io/instance=mine,inference/kind"):
        found.setdefault(one["metadata"]["labels"]["app.kubernetes.io/component"], []).append(one)
    return found


def machines_of(found: list[dict[str, Any]]) -> set[str]:
    return {one["spec"].get("nodeName", "").rpartition("-")[0] or one["spec"]["nodeName"] for one in found}


def uids(found: dict[str, list[dict[str, Any]]]) -> set[str]:
    return {one["metadata"]["uid"] for some in found.values() for one in some}


def test_deploy_shows_the_objects_waits_until_all_are_ready_and_asks_as_a_client_would(
    led: ControlPlane, work: Path, blueprint: Blueprint
) -> None:
    code, out, err = blueprint("deploy", "--yes")
    assert code == 0, err
    assert "+ Deployment mine-worker" in err, "what will change is shown before"
    assert "$ helm test mine" in err
    assert out == "mine: is up at http://mine.serving.svc:8080\n"
    found = pods(led)
    assert {role: machines_of(some) for role, some in found.items()} == {"worker": {"general"}, "router": {"plain"}}
    assert "Warning" not in next(work.rglob("eks.log")).read_text(), "the API server has nothing against an object"
    assert json.loads(blueprint("status", "--json").out)["members"][0]["state"] == "ready"


def test_a_second_deploy_changes_nothing_and_an_edit_shows_as_its_difference(
    up: None, led: ControlPlane, work: Path, blueprint: Blueprint
) -> None:
    before = uids(pods(led))
    code, out, _ = blueprint("deploy", "--yes")
    assert (code, out) == (0, "mine: no change; it is up at http://mine.serving.svc:8080\n")
    assert uids(pods(led)) == before
    edit(work / "mine/blueprint.yaml", "replicas: 2", "replicas: 3")
    code, out, _ = blueprint("diff")
    assert code == 0
    assert {"-  replicas: 2", "+  replicas: 3"} <= set(out.splitlines())
    assert blueprint("diff", "--exit-code").code == 1


def test_diff_writes_nothing_so_that_a_rendered_file_edited_by_hand_stays(
    led: ControlPlane, work: Path, blueprint: Blueprint
) -> None:
    blueprint("render")
    rendered = work / "rendered/mine/eks/eks.yaml"
    rendered.write_text(rendered.read_text() + "# mine\n")
    assert blueprint("diff").code == 0
    assert rendered.read_text().endswith("# mine\n")
    code, _, err = blueprint("deploy", "--yes")
    assert code == 2 and "eks.yaml" in err, "deploying asks before it is overwritten"


def test_nothing_is_changed_where_the_user_does_not_want_it(
    up: None, led: ControlPlane, work: Path, blueprint: Blueprint
) -> None:
    before = led.do("get", "deployments", *HERE, "--output=name")
    edit(work / "mine/blueprint.yaml", "replicas: 2", "replicas: 3")
    code, _, err = blueprint("deploy")
    assert code == 2, "there is nobody to ask"
    assert "--yes" in err
    assert len(pods(led)["worker"]) == 2
    assert led.do("get", "deployments", *HERE, "--output=name") == before


def test_a_replica_too_many_waits_for_a_machine_and_the_deployment_goes_back_saying_so(
    up: None, led: ControlPlane, work: Path, blueprint: Blueprint, late_when: Callable[..., None]
) -> None:
    late_when(f"worker {GPUS} of {GPUS + 1}", "Insufficient nvidia.com/gpu")
    before = {one["metadata"]["uid"] for one in pods(led)["worker"]}
    edit(work / "mine/blueprint.yaml", "replicas: 2", f"replicas: {GPUS + 1}")
    code, _, err = blueprint("deploy", "--yes")
    assert code == 1
    assert "mine does not answer: " in err and f"worker {GPUS} of {GPUS + 1}" in err
    assert f"0/{GPUS + 1} nodes are available" in err and f"{GPUS} Insufficient nvidia.com/gpu" in err
    assert err.endswith("what ran before runs again\n")
    assert {one["metadata"]["uid"] for one in pods(led)["worker"]} == before, "it served all the while"


def test_a_version_that_crashes_is_taken_back_with_its_last_lines_while_the_old_one_serves(
    up: None, led: ControlPlane, work: Path, blueprint: Blueprint, late_when: Callable[..., None]
) -> None:
    late_when("CrashLoopBackOff")
    before = {one["metadata"]["uid"] for one in pods(led)["worker"]}
    led.pods_log.write_text("2026-11-01T00:00:00.000000000Z stdout F ValueError: no room for the KV cache\n")
    edit(work / "mine/eks.yaml.j2", "{% include", "defaults: {engine: {annotations: {play: crash}}}\n{% include")
    code, _, err = blueprint("deploy", "--yes")
    assert code == 1
    assert ": CrashLoopBackOff, 4 restarts\n" in err
    assert "ValueError: no room for the KV cache" in err
    assert err.endswith("what ran before runs again\n")
    assert before & {one["metadata"]["uid"] for one in pods(led)["worker"]}, "one was left to serve"


def test_where_helm_was_killed_at_its_work_nothing_is_taken_back_and_the_way_out_is_said(
    up: None, led: ControlPlane, work: Path, blueprint: Blueprint
) -> None:
    blueprint("render")
    release = ["mine", *HERE, "--values", "rendered/mine/eks/eks.yaml", str(target.CHART)]
    killed = subprocess.Popen([led.helm, "upgrade", *release, "--set", f"roles.worker.replicas={GPUS + 2}", "--wait"])
    pending = ("get", "secrets", *HERE, "--selector=owner=helm,name=mine,status=pending-upgrade", "--output=name")
    processes.wait_until(lambda: bool(led.do(*pending)), "helm's work", 30)
    killed.kill()
    killed.wait()
    code, _, err = blueprint("deploy", "--yes")
    assert code == 1
    said = err.splitlines()[-1]
    assert said.startswith("helm says that another command is at work on mine. Nothing was changed: wait for it; ")
    assert led.do(*pending), "helm's work was not touched"
    remedy = said[said.index("helm rollback") : said.index(", and deploy again")]
    subprocess.run(remedy.split(), check=True, timeout=60, capture_output=True)
    assert blueprint("deploy", "--yes").out == "mine: no change; it is up at http://mine.serving.svc:8080\n"


@pytest.mark.parametrize(
    ("statuses", "revision", "settled"),
    [
        (["superseded", "deployed"], 2, True),
        (["deployed", "failed"], 1, False),
        (["superseded", "pending-upgrade"], 1, False),  # killed between two of helm's notes
        (["pending-install"], None, False),
    ],
)
def test_what_ran_before_is_the_last_revision_that_was_installed_in_full(
    monkeypatch: pytest.MonkeyPatch, statuses: list[str], revision: int | None, settled: bool
) -> None:
    known = [{"revision": number, "status": status} for number, status in enumerate(statuses, 1)]
    monkeypatch.setattr(target, "_history", lambda _: known)
    monkeypatch.setattr(target, "_helm", lambda command, _: ["helm", *command.split()])
    monkeypatch.setattr(target, "_ask", lambda words: words[-1])
    manifest = f"--revision={revision}" if revision else ""
    assert target._release(None) == target._Release(revision, settled, manifest)  # type: ignore[arg-type]


def test_a_deployment_whose_router_gives_no_answer_is_taken_back(
    up: None, led: ControlPlane, work: Path, blueprint: Blueprint
) -> None:
    led.pods_log.write_text("2026-11-01T00:00:00.000000000Z stdout F no answer in 60 s\n")
    edit(work / "mine/eks.yaml.j2", "{% include", "annotations: {play: silence}\n{% include")
    code, _, err = blueprint("deploy", "--yes")
    assert code == 1
    assert "no answer in 60 s" in err, "what the client's pod said"
    assert err.endswith("what ran before runs again\n")
    assert blueprint("status").code == 0, "the client's pod is no part of the deployment"


def test_a_first_deployment_that_the_cluster_refuses_is_said_in_its_words_and_leaves_nothing(
    up: None, led: ControlPlane, work: Path, blueprint: Blueprint, late_when: Callable[..., None]
) -> None:
    late_when("violates PodSecurity")
    shutil.copytree(work / "mine", work / "other")
    edit(work / "other/eks.yaml.j2", "{% include", "defaults: {engine: {user: 0}}\n{% include")
    level = "pod-security.kubernetes.io/enforce"
    led.do("label", "namespace", "serving", f"{level}=restricted")
    try:
        code, _, err = blueprint("deploy", "--yes", folder="other")
    finally:
        led.do("label", "namespace", "serving", f"{level}-")
    assert code == 1
    assert "other does not answer: " in err and "worker 0 of 2: " in err
    assert 'violates PodSecurity "restricted:latest"' in err and "runAsNonRoot" in err
    assert err.endswith("nothing of other ran before, and nothing is left of it\n")
    left = led.do("get", "all,cm,pdb,netpol,sa,role,secret", *HERE, "--output=name")
    assert "other" not in left and "mine" in left


def test_status_logs_and_deploy_tell_a_pod_that_waits_from_those_that_run(
    up: None, led: ControlPlane, work: Path, blueprint: Blueprint, late_when: Callable[..., None]
) -> None:
    late_when(f"worker {GPUS} of {GPUS + 1}")
    led.pods_log.write_text("2026-11-01T00:00:00.000000000Z stdout F Uvicorn running\n")
    led.do("scale", "deployment/mine-worker", *HERE, f"--replicas={GPUS + 1}")
    try:
        code, _, err = blueprint("deploy", "--yes")
        assert code == 1, "nothing is to be changed, and still it is not up"
        assert f"worker {GPUS} of {GPUS + 1}" in err
        code, out, err = blueprint("status", "--json")
        assert (code, err.splitlines()[-1]) == (1, "mine: not all of worker is ready")
        states = [one["state"] for one in json.loads(out)["members"] if one["role"] == "worker"]
        assert states.count("ready") == GPUS
        code, out, _ = blueprint("logs", "worker", "--lines", "1")
        assert (code, out.count("/engine] Uvicorn running\n")) == (0, GPUS)
    finally:
        led.do("scale", "deployment/mine-worker", *HERE, "--replicas=2")


def test_validate_plays_the_load_through_the_api_servers_tunnel(up: None, work: Path, blueprint: Blueprint) -> None:
    code, out, err = blueprint("validate", "--requests", "20", "--json")
    assert code == 0, err
    assert "$ kubectl port-forward --namespace serving service/mine" in err
    report = json.loads(out)
    assert (report["verdict"], report["requests"]["total"], report["requests"]["failed"]) == ("pass", 20, 0)


def test_a_new_version_beside_the_old_gets_its_share_of_the_route_and_one_command_goes_back(
    up: None, led: ControlPlane, work: Path, blueprint: Blueprint
) -> None:
    shutil.copytree(work / "mine", work / "mine-v2")
    edit(work / "mine-v2/blueprint.yaml", "replicas: 2", "replicas: 1")
    before = uids(pods(led))
    assert blueprint("deploy", "--yes", folder="mine-v2").code == 0
    try:
        assert uids(pods(led)) == before, "the old version has not noticed"
        assert main.run(["shift", "chat", "mine=90", "mine-v2=10", "--gateway", "edge/public"]) == 0
        assert weights(led) == {"mine": 90, "mine-v2": 10}
        assert main.run(["shift", "chat", "mine=0", "mine-v2=100", "--gateway", "edge/public"]) == 0
        assert weights(led) == {"mine": 0, "mine-v2": 100}
        assert main.run(["shift", "chat", "--back"]) == 0
        assert weights(led) == {"mine": 90, "mine-v2": 10}
        route = yaml.safe_load((work / "rendered/chat/eks/chat.yaml").read_text())["route"]
        assert route["gateway"] == {"name": "public", "namespace": "edge", "section": ""}
    finally:
        uninstall(led, "mine-v2", "chat")


def weights(cluster: ControlPlane) -> dict[str, int]:
    """The route's shares by service, each of which has pods that are ready behind the port that the route names."""
    [rule] = cluster.read("httproute", "chat", *HERE)["spec"]["rules"]
    for one in rule["backendRefs"]:
        [slices] = cluster.read("endpointslices", *HERE, f"--selector=kubernetes.io/service-name={one['name']}")
        assert [port["port"] for port in slices["ports"]] == [one["port"]]
        assert [there["conditions"]["ready"] for there in slices["endpoints"]] == [True]
    return {one["name"]: one["weight"] for one in rule["backendRefs"]}


def uninstall(cluster: ControlPlane, *releases: str) -> None:
    """Has them go, without waiting for it."""
    words = [cluster.helm, "uninstall", *releases, *HERE, "--ignore-not-found"]
    environment = {**os.environ, **cluster.environment}
    subprocess.run(words, env=environment, timeout=60, check=True, capture_output=True)


def test_an_eviction_beyond_the_disruption_budget_is_refused(up: None, led: ControlPlane) -> None:
    names = [one["metadata"]["name"] for one in pods(led)["worker"]]
    led.do("cordon", "--selector=fleet/pool=general")
    try:
        taken, refused = (evict(led, name) for name in names)
    finally:
        led.do("uncordon", "--selector=fleet/pool=general")
    assert "Success" in taken
    assert "would violate the pod's disruption budget" in refused


def evict(cluster: ControlPlane, name: str) -> str:
    """What the API server says to it, as `kubectl drain` would ask."""
    wanted = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": "serving"}}
    path = f"/api/v1/namespaces/serving/pods/{name}/eviction"
    said = cluster.ask("create", f"--raw={path}", "--filename=-", told=wanted)
    return said.stdout + said.stderr


def test_the_router_may_look_at_pods_and_the_engines_may_nothing(up: None, led: ControlPlane) -> None:
    accounts = ("engines", "mine-router")
    assert {one["spec"]["serviceAccountName"] for some in pods(led).values() for one in some} == set(accounts)
    anybody = rights(led, "default")
    more = {name: rights(led, name) - anybody for name in accounts}
    assert {name: [line.split() for line in lines] for name, lines in more.items()} == {
        "engines": [],
        "mine-router": [["pods", "[]", "[]", "[get", "list", "watch]"]],
    }


def rights(cluster: ControlPlane, account: str) -> set[str]:
    """What a service account may do in its namespace, a line a resource."""
    who = f"system:serviceaccount:serving:{account}"
    return set(cluster.do("auth", "can-i", "--list", "--no-headers", *HERE, f"--as={who}").splitlines())


def test_destroy_leaves_nothing_and_says_where_there_is_none(up: None, led: ControlPlane, blueprint: Blueprint) -> None:
    assert blueprint("destroy", "--yes").code == 0
    left = led.do("get", "all,cm,pdb,netpol,sa,role,rolebinding,secret,lws,scaledobject", *HERE, "--output=name")
    assert set(left.split()) <= {"serviceaccount/engines", "serviceaccount/default", "configmap/kube-root-ca.crt"}
    code, out, _ = blueprint("destroy", "--yes")
    assert (code, out) == (0, "mine: nothing is deployed on eks\n")


def test_several_models_come_up_behind_one_router(led: ControlPlane, work: Path, blueprint: Blueprint) -> None:
    uninstall(led, "mine")
    shutil.copytree(ROOT / "blueprints" / "multi-model", work / "models")
    code, out, err = blueprint("deploy", "--yes", folder="models")
    try:
        assert (code, out) == (0, "models: is up at http://models.serving.svc:8080\n"), err
        said = json.loads(blueprint("status", "--json", folder="models").out)
        assert [(one["role"], one["state"]) for one in said["members"]] == [
            ("long", "ready"), ("router", "ready"), ("small", "ready"),
        ]  # fmt: skip
    finally:
        uninstall(led, "models")


def test_a_replica_over_several_machines_is_waited_for_as_its_controller_would_say(
    led: ControlPlane, work: Path, blueprint: Blueprint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No such controller runs here: what it would write, this test does, once the deployment was seen to wait."""
    shutil.copytree(ROOT / "blueprints" / "distributed", work / "wide")
    shutil.copy(work / "wide/presets/two-machines.yaml", work / "wide/blueprint.yaml")
    pool = "{types: p5en.48xlarge, zones: us-west-2a, buy: {capacity-block: cr-0123456789abcdef0}, size: 2, efa: on}"
    edit(work / "fleet.yaml", "pools:\n", f"pools:\n  p5en: {pool}\n")
    seen: list[str] = []
    look = target._late
    state = {"status": {"observedGeneration": 1, "replicas": 1, "readyReplicas": 1, "updatedReplicas": 1}}

    def late(plan: Plan) -> Iterator[str]:
        found = list(look(plan))
        if found == ["worker 0 of 1"] and not seen:
            seen.extend(found)
            led.do("patch", "lws/wide-worker", *HERE, "--subresource=status", "--type=merge", f"-p={json.dumps(state)}")
        return iter(found)

    monkeypatch.setattr(target, "_late", late)
    code, out, err = blueprint("deploy", "--yes", folder="wide")
    try:
        assert (code, out) == (0, "wide: is up at http://wide.serving.svc:8080\n"), err
        assert seen
    finally:
        uninstall(led, "wide")


def test_a_cluster_out_of_reach_is_said_in_one_line(
    work: Path, blueprint: Blueprint, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        helm = Path(go_programs.path_of(go_programs.HELM))
    except (Unavailable, CommandFailed) as error:
        pytest.skip(f"no Helm: {error}")
    kubectl = work / "kubectl"
    kubectl.touch(mode=0o755)  # is looked for, and not called
    monkeypatch.setenv("PATH", f"{helm.parent}:{work}")
    monkeypatch.setenv("KUBECONFIG", "/dev/null")
    code, _, err = blueprint("deploy", "--yes")
    assert code == 3
    assert "Error: Kubernetes cluster unreachable" in err.splitlines()[-1]
    assert "Traceback" not in err


def test_a_missing_program_is_said_with_where_to_get_it(
    work: Path, blueprint: Blueprint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    code, _, err = blueprint("deploy", "--yes")
    assert code == 3
    assert "not on this machine's PATH: helm" in err and "https://helm.sh/docs/intro/install" in err
