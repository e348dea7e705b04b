"""The commands around a local deployment, as a user types them, with stand-ins for the engine and for AWS."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from llm_serving.cli import main
from llm_serving.targets.local.deploy import Plan

ROOT = Path(__file__).resolve().parents[3]
PATTERNS = ROOT / "blueprints"
NAMES = sorted(path.parent.name for path in PATTERNS.glob("*/blueprint.yaml"))
Planned = Callable[[], Plan]


@pytest.fixture
def blueprint(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs a command; returns its exit code and what it printed."""

    def run(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main.run(list(words))
        said = capfd.readouterr()
        return code, said.out, said.err

    return run


Blueprint = Callable[..., tuple[int, str, str]]


def test_list_names_each_pattern_with_its_targets_and_a_line(blueprint: Blueprint) -> None:
    code, out, _ = blueprint("list")
    assert code == 0
    assert "aggregated (eks, local)" in out or "aggregated (ecs, eks, local)" in out
    assert "Replicas of one engine behind a router" in out
    listed = json.loads(blueprint("list", "--json")[1])
    assert [one["name"] for one in listed] == NAMES
    assert {"eks", "local"} <= set(listed[0]["targets"])


def test_new_copies_a_pattern_and_a_fleet_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blueprint: Blueprint
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = blueprint("new", "mine", "--from", "aggregated")
    assert code == 0
    shapes = {"presets"}
    there = {path.name for path in (PATTERNS / "aggregated").iterdir()}
    assert {path.name for path in Path("mine").iterdir()} == there - shapes
    assert "include" not in Path("mine/local.conf.j2").read_text(), "every line is there to be changed"
    assert "fleet.yaml: none was here, so this is a copy of the default fleet" in out
    for file in (Path("mine/blueprint.yaml"), Path("fleet.yaml")):
        schema = file.read_text().split("$schema=")[1].split()[0]
        assert (file.parent / schema).resolve().is_file(), "editors find the schema from where the copy lies"
    assert blueprint("check", "mine")[0] == 0
    assert blueprint("render", "mine")[0] == 0


def test_new_overwrites_nothing(work: Path, blueprint: Blueprint) -> None:
    code, _, err = blueprint("new", "mine", "--from", "aggregated")
    assert (code, err) == (2, "mine: it is there already, and nothing is overwritten. Write another name.\n")
    fleet = (work / "fleet.yaml").read_text()
    (work / "fleet.yaml").write_text(fleet + "# mine\n")
    assert blueprint("new", "other", "--from", "aggregated")[0] == 0
    assert (work / "fleet.yaml").read_text().endswith("# mine\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("mine", "--from", "nothing"),
            f"--from: now 'nothing': there is no such pattern. Write {' or '.join(NAMES)}.\n",
        ),
        (
            ("My_Own", "--from", "aggregated"),
            "NAME: now 'My_Own': its last part is to be the deployment's name. "
            "Write 2 to 32 of a-z, 0-9 and -, a letter first.\n",
        ),
    ],
)
def test_new_refuses_what_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blueprint: Blueprint, words: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = blueprint("new", *words)
    assert (code, err) == (2, said)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["render", "diff", "deploy"])
def test_a_fleet_file_that_is_not_there_is_said(work: Path, blueprint: Blueprint, command: str) -> None:
    (work / "fleet.yaml").unlink()
    code, _, err = blueprint(command, "mine")
    assert code == 2
    assert err == "fleet.yaml:1:1: there is no such file. Write the path of a file that exists.\n"


@pytest.mark.parametrize("command", ["render", "diff", "deploy", "destroy", "status", "logs"])
def test_a_target_without_a_template_is_said(work: Path, blueprint: Blueprint, command: str) -> None:
    (work / "mine" / "eks.yaml.j2").unlink()
    code, _, err = blueprint(command, "mine", "--target", "eks")
    there = ", ".join(sorted(path.name.split(".")[0] for path in (work / "mine").glob("*.j2")))
    assert (code, err) == (2, f"mine: it holds no template for the target eks (eks.*.j2); it has one for {there}.\n")
    assert not (work / ".blueprint").exists()


def test_diff_says_whether_anything_would_change_and_exits_1_only_when_asked(
    work: Path, planned: Planned, blueprint: Blueprint
) -> None:
    code, out, _ = blueprint("diff", "mine")
    assert code == 0
    assert "+[program:worker-1]" in out
    code, _, err = blueprint("diff", "mine", "--exit-code")
    assert (code, err) == (1, "mine: what is deployed is not what the files say\n")


def test_deploy_asks_first_and_does_nothing_without_an_answer(
    work: Path, planned: Planned, stand_in: Path, blueprint: Blueprint
) -> None:
    code, _, err = blueprint("deploy", "mine")
    assert code == 2
    assert err.endswith("Deploy this? There is no terminal to ask in. Write --yes.\n")
    assert planned().run.deployment() is None


def test_the_whole_life_of_a_deployment(work: Path, planned: Planned, stand_in: Path, blueprint: Blueprint) -> None:
    code, out, err = blueprint("status", "mine")
    assert (code, out) == (1, "")
    assert err == "mine: nothing runs here; blueprint deploy mine brings it up\n"
    code, _, err = blueprint("logs", "mine")
    assert (code, err) == (1, "mine: nothing has run here yet\n")

    code, out, err = blueprint("deploy", "mine", "--yes")
    url = planned().deployment.url
    assert code == 0
    assert f"mine is up at {url}" in out
    assert f"curl {url}/v1/chat/completions" in out
    assert "The weights are random numbers" in out
    assert "blueprint destroy mine" in out
    assert "the engine runs on CPU" in err

    code, out, _ = blueprint("deploy", "mine", "--yes")
    assert code == 0
    assert "mine: no change; it is up" in out

    code, out, _ = blueprint("status", "mine", "--json")
    told = json.loads(out)
    assert code == 0
    assert told["url"] == url
    assert {one["name"]: one["port"] for one in told["processes"]} == {
        name: port for name, port in planned().run.ports().items() if name != "router-metrics"
    }
    code, out, _ = blueprint("status", "mine")
    assert code == 0
    assert ("worker-1" in out and "running" in out) or "starting" in out

    code, out, _ = blueprint("logs", "mine", "worker-0")
    assert (code, out) == (0, "serving tiny\n")
    code, out, _ = blueprint("logs", "mine", "--lines", "1")
    assert "worker-1 | serving tiny" in out
    code, _, err = blueprint("logs", "mine", "worker-7")
    assert code == 2
    assert err == (
        "PROCESS: now 'worker-7': mine has no such process. "
        "Write one of aws, router, supervisord, worker-0, worker-1.\n"
    )

    (work / "mine" / "blueprint.yaml").write_text("broken: [")
    assert blueprint("status", "mine")[0] == 0, "what runs can be looked at and ended while its file is being edited"
    code, _, err = blueprint("destroy", "mine")
    assert code == 2
    assert "End mine and remove .blueprint/mine? There is no terminal to ask in. Write --yes." in err
    assert blueprint("destroy", "mine", "--yes")[0] == 0
    assert not (work / ".blueprint").exists()
    assert not (work / "rendered").exists()


def test_destroy_of_nothing_is_well(work: Path, blueprint: Blueprint) -> None:
    code, out, _ = blueprint("destroy", "mine")
    assert (code, out) == (0, "mine: nothing is deployed from here\n")


def test_status_says_which_process_does_not_run(
    work: Path, planned: Planned, stand_in: Path, blueprint: Blueprint
) -> None:
    blueprint("deploy", "mine", "--yes")
    from llm_serving.targets.local import supervisor

    up = supervisor.running(planned().run)
    assert up is not None
    up.stop("worker-1")
    code, out, err = blueprint("status", "mine")
    assert (code, err) == (1, "mine: worker-1 not running\n")
    assert "stopped" in out


def test_logs_follow_what_is_written_from_now_on(work: Path, planned: Planned) -> None:
    run = planned().run
    run.make()
    run.log("worker-0").write_text("old 1\nold 2\n")
    command = ["logs", "mine", "worker-0", "--follow", "--lines", "1"]
    program = "from llm_serving.cli.main import main; main()"
    follower = subprocess.Popen([sys.executable, "-c", program, *command], stdout=subprocess.PIPE, text=True)
    assert follower.stdout is not None
    try:
        assert follower.stdout.readline() == "old 2\n"
        with run.log("worker-0").open("a") as log:
            log.write("new")
            log.flush()
            time.sleep(0.5)
            log.write(" line\n")
        assert follower.stdout.readline() == "new line\n", "a line shows when it is whole"
        run.log("worker-0").write_text("x\n")
        assert follower.stdout.readline() == "x\n", "a log that begins anew is followed"
    finally:
        follower.terminate()
        follower.wait(20)
