"""Deploying to EKS: the real Helm lays the chart out; a stand-in for the cluster keeps what was installed."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.errors import Unavailable
from scripts import cli, go_programs
from scripts.console import CommandFailed

ROOT = Path(__file__).resolve().parents[3]

HELM = """#!{python}
# Forwards what needs no cluster to the real Helm; keeps releases as files in place of a cluster.
import os, pathlib, subprocess, sys
real, state = "{real}", pathlib.Path("{state}")
command, *rest = sys.argv[1:]
name = rest[0] if rest else ""
release = state / (name + ".yaml")
with (state / "calls").open("a") as calls:
    print("helm", *sys.argv[1:], file=calls)
if command in ("template", "version"):
    sys.exit(subprocess.run([real, *sys.argv[1:]]).returncode)
if (state / "unreachable").exists():
    sys.exit("Error: Kubernetes cluster unreachable: connection refused")
if command == "get":
    release = state / (rest[1] + ".yaml")
    if not release.exists():
        sys.exit("Error: release: not found")
    print(release.read_text())
elif command == "upgrade":
    if (state / "fails").exists():
        sys.exit("Error: UPGRADE FAILED: release " + name + " failed, and has been rolled back: context deadline exceeded")
    values = rest[rest.index("--values") + 1]
    chart = next(word for word in rest if os.path.isabs(word) and os.path.isdir(word))
    made = subprocess.run([real, "template", name, chart, "--namespace", "serving", "--values", values],
                          capture_output=True, text=True, check=True)
    release.write_text(made.stdout)
elif command == "uninstall":
    release.unlink()
"""

KUBECTL = """#!{python}
# Answers as a cluster would in which these pods are.
import pathlib, sys
state = pathlib.Path("{state}")
with (state / "calls").open("a") as calls:
    print("kubectl", *sys.argv[1:], file=calls)
if sys.argv[1] == "get":
    print((state / "pods.json").read_text())
if sys.argv[1] == "logs":
    print("ValueError: no room for the KV cache")
"""

Blueprint = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of what the stand-in for the cluster keeps: releases, the calls, and what goes wrong with it."""
    try:
        real = go_programs.path_of(go_programs.HELM)
    except (Unavailable, CommandFailed) as error:
        pytest.skip(f"no Helm: {error}")
    state, programs = tmp_path / "cluster", tmp_path / "bin"
    state.mkdir()
    programs.mkdir()
    for name, text in (("helm", HELM), ("kubectl", KUBECTL)):
        (programs / name).write_text(text.format(python=sys.executable, real=real, state=state))
        (programs / name).chmod(0o755)
    (state / "pods.json").write_text(
        json.dumps({"items": [pod("mine-worker-a", "True"), pod("mine-worker-b", "False")]})
    )
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return state


def pod(name: str, ready: str) -> dict[str, object]:
    waiting = {} if ready == "True" else {"waiting": {"reason": "CrashLoopBackOff"}}
    return {
        "metadata": {"name": name, "labels": {"app.kubernetes.io/component": "worker"}},
        "spec": {"nodeName": "ip-10-0-0-1"},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": ready}],
            "containerStatuses": [{"restartCount": 4 if waiting else 0, "state": waiting}],
        },
    }


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    shutil.copytree(ROOT / "blueprints" / "aggregated", folder / "mine")
    shutil.copy(ROOT / "fleet.yaml", folder)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def blueprint(capfd: pytest.CaptureFixture[str]) -> Blueprint:
    def run(command: str, *words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = cli.run([command, "mine", "--target", "eks", *words])
        said = capfd.readouterr()
        return code, said.out, said.err

    return run


def calls(cluster: Path) -> list[str]:
    return (cluster / "calls").read_text().splitlines()


def test_deploy_shows_the_objects_waits_for_answers_and_asks_as_a_client_would(
    cluster: Path, work: Path, blueprint: Blueprint
) -> None:
    code, out, err = blueprint("deploy", "--yes")
    assert code == 0, err
    assert "+ Deployment mine-worker" in err, "what will change is shown before"
    assert out == "mine: is up at http://mine.serving.svc:8080\n"
    upgrade = next(call for call in calls(cluster) if call.startswith("helm upgrade"))
    assert "--install" in upgrade and "--wait" in upgrade
    assert "--atomic" in upgrade or "--rollback-on-failure" in upgrade
    assert any(call.startswith("helm test mine") for call in calls(cluster))


def test_the_engines_service_account_is_there_before_the_release(
    cluster: Path, work: Path, blueprint: Blueprint
) -> None:
    blueprint("deploy", "--yes")
    order = [call.split()[0:2] for call in calls(cluster) if call.split()[1] in ("apply", "upgrade")]
    assert order == [["kubectl", "apply"], ["helm", "upgrade"]]
    base = (work / "rendered/mine/eks/namespace.yaml").read_text()
    assert "name: engines" in base and "namespace: serving" in base


def test_a_second_deploy_changes_nothing_and_an_edit_shows_as_its_difference(
    cluster: Path, work: Path, blueprint: Blueprint
) -> None:
    blueprint("deploy", "--yes")
    code, out, _ = blueprint("deploy", "--yes")
    assert (code, out) == (0, "mine: no change; it is up at http://mine.serving.svc:8080\n")
    file = work / "mine/blueprint.yaml"
    file.write_text(file.read_text().replace("replicas: 2", "replicas: 3"))
    code, out, _ = blueprint("diff")
    assert code == 0
    assert {"-  replicas: 2", "+  replicas: 3"} <= set(out.splitlines())
    assert blueprint("diff", "--exit-code")[0] == 1


def test_diff_writes_nothing_so_that_a_rendered_file_edited_by_hand_stays(
    cluster: Path, work: Path, blueprint: Blueprint
) -> None:
    blueprint("render")
    rendered = work / "rendered/mine/eks/eks.yaml"
    rendered.write_text(rendered.read_text() + "# mine\n")
    assert blueprint("diff")[0] == 0
    assert rendered.read_text().endswith("# mine\n")
    code, _, err = blueprint("deploy", "--yes")
    assert code == 2 and "eks.yaml" in err, "deploying asks before it is overwritten"


def test_a_release_that_does_not_come_to_answer_is_rolled_back_and_the_pod_is_named(
    cluster: Path, work: Path, blueprint: Blueprint
) -> None:
    (cluster / "fails").touch()
    code, _, err = blueprint("deploy", "--yes")
    assert code == 1
    assert "has been rolled back" in err
    assert "worker: mine-worker-b: CrashLoopBackOff, 4 restarts" in err
    assert "no room for the KV cache" in err
    assert "mine-worker-a" not in err, "what is ready is not blamed"


def test_nothing_is_changed_where_the_user_does_not_want_it(cluster: Path, work: Path, blueprint: Blueprint) -> None:
    code, _, err = blueprint("deploy")
    assert code == 2, "there is nobody to ask"
    assert "--yes" in err
    assert not any("upgrade" in call for call in calls(cluster))


def test_status_names_the_role_that_is_not_ready(cluster: Path, work: Path, blueprint: Blueprint) -> None:
    code, out, err = blueprint("status", "--json")
    assert code == 1
    assert [one["state"] for one in json.loads(out)["members"]] == ["ready", "CrashLoopBackOff"]
    assert err.endswith("mine: not all of worker is ready\n")


def test_destroy_removes_the_release_and_says_where_there_is_none(
    cluster: Path, work: Path, blueprint: Blueprint
) -> None:
    blueprint("deploy", "--yes")
    assert blueprint("destroy", "--yes")[0] == 0
    assert not (cluster / "mine.yaml").exists()
    code, out, _ = blueprint("destroy", "--yes")
    assert (code, out) == (0, "mine: nothing is deployed on eks\n")


def test_a_cluster_out_of_reach_is_said_in_one_line(cluster: Path, work: Path, blueprint: Blueprint) -> None:
    (cluster / "unreachable").touch()
    code, _, err = blueprint("deploy", "--yes")
    assert code == 3
    assert err.splitlines()[-1].endswith("Error: Kubernetes cluster unreachable: connection refused")
    assert "Traceback" not in err


def test_a_missing_program_is_said_with_where_to_get_it(
    work: Path, blueprint: Blueprint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    code, _, err = blueprint("deploy", "--yes")
    assert code == 3
    assert "not on this machine's PATH: helm" in err and "https://helm.sh/docs/intro/install" in err
