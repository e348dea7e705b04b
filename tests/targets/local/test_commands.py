"""The commands of a local deployment as a user types them, with fakes of the engine and of AWS."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from llm_serving import processes
from llm_serving.cli import main
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.local import supervisor
from llm_serving.targets.local.target import TARGET
from llm_serving.workflows import serving

ROOT = Path(__file__).resolve().parents[3]
PATTERNS = ROOT / "blueprints"
NAMES = sorted(path.parent.name for path in PATTERNS.glob("*/blueprint.yaml"))
Planned = Callable[[], DeploymentPlan]


@pytest.fixture
def run_cli(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a command; return its exit code and its output."""

    def run(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main.run(list(words))
        output = capfd.readouterr()
        return code, output.out, output.err

    return run


RunCli = Callable[..., tuple[int, str, str]]


def test_list_shows_each_pattern_with_its_targets_and_description(run_cli: RunCli) -> None:
    code, out, _ = run_cli("list")
    assert code == 0
    rows = [line.split("  ") for line in out.splitlines()]
    assert "ecs, eks, local" in [cell.strip() for row in rows if row[0] == "aggregated" for cell in row]
    assert "Replicas of one engine behind a router" in out
    assert max(map(len, out.splitlines())) <= 80
    patterns = json.loads(run_cli("list", "--json")[1])
    assert [pattern["name"] for pattern in patterns] == NAMES
    assert {"eks", "local"} <= set(patterns[0]["targets"])


def test_new_copies_a_pattern_and_a_missing_fleet_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_cli: RunCli
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = run_cli("new", "mine", "--from", "aggregated")
    assert code == 0
    shapes = {"presets", "pattern.yaml"}
    file_names = {path.name for path in (PATTERNS / "aggregated").iterdir()}
    assert {path.name for path in Path("mine").iterdir()} == file_names - shapes
    assert "include" not in Path("mine/local.conf.j2").read_text(), "every line is there to be changed"
    assert "fleet.yaml: copied from the default fleet" in out
    for file in (Path("mine/blueprint.yaml"), Path("fleet.yaml")):
        schema = file.read_text().split("$schema=")[1].split()[0]
        assert (file.parent / schema).resolve().is_file(), "editors find the schema from where the copy lies"
    assert run_cli("check", "mine")[0] == 0
    assert run_cli("render", "mine")[0] == 0


def test_new_overwrites_nothing(working_folder: Path, run_cli: RunCli) -> None:
    code, _, err = run_cli("new", "mine", "--from", "aggregated")
    assert (code, err) == (2, 'NAME: "mine": it exists already. Fix: use another name.\n')
    fleet = (working_folder / "fleet.yaml").read_text()
    (working_folder / "fleet.yaml").write_text(fleet + "# mine\n")
    assert run_cli("new", "other", "--from", "aggregated")[0] == 0
    assert (working_folder / "fleet.yaml").read_text().endswith("# mine\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("mine", "--from", "nothing"),
            f'--from: "nothing": there is no such pattern. Fix: use {" or ".join(NAMES)}.\n',
        ),
        (
            ("My_Own", "--from", "aggregated"),
            "NAME: \"My_Own\": the folder's name becomes the deployment's name. "
            "Fix: use 2 to 32 characters of a-z, 0-9 and -, starting with a letter.\n",
        ),
    ],
)
def test_new_refuses_invalid_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_cli: RunCli, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = run_cli("new", *arguments)
    assert (code, err) == (2, message)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["render", "diff", "deploy"])
def test_a_missing_fleet_file_is_named(working_folder: Path, run_cli: RunCli, command: str) -> None:
    (working_folder / "fleet.yaml").unlink()
    code, _, err = run_cli(command, "mine")
    assert code == 2
    assert err == (
        "fleet.yaml: there is no such file. "
        "Fix: go to the folder that holds it, or use --fleet FILE; `blueprint new` creates one.\n"
    )


def test_names_of_an_account_that_is_not_known_are_pointed_out_also_where_credentials_have_expired(
    working_folder: Path, monkeypatch: pytest.MonkeyPatch, run_cli: RunCli
) -> None:
    for name, value in (
        ("ACCESS_KEY_ID", "expired"),
        ("SECRET_ACCESS_KEY", "x"),
        ("ENDPOINT_URL", "http://127.0.0.1:9"),
    ):
        monkeypatch.setenv(f"AWS_{name}", value)
    code, _, err = run_cli("render", "mine", "--target", "eks")
    assert code == 0
    assert err.splitlines()[-1] == (
        "There are no AWS credentials, or AWS does not take them: names contain the embedded AWS's account "
        "123456789012, not yours. Fix: sign in, or write `account` in the fleet file."
    )


@pytest.mark.parametrize("command", ["render", "diff", "deploy", "destroy", "status", "logs"])
def test_a_target_without_a_template_is_refused(working_folder: Path, run_cli: RunCli, command: str) -> None:
    (working_folder / "mine" / "eks.yaml.j2").unlink()
    code, _, err = run_cli(command, "mine", "--target", "eks")
    targets = " or ".join(sorted(path.name.split(".")[0] for path in (working_folder / "mine").glob("*.j2")))
    fix = f"copy it from the pattern's folder, or use --target {targets}"
    assert (code, err) == (2, f"mine: no template for the target eks (eks.*.j2). Fix: {fix}.\n")
    assert not (working_folder / ".blueprint").exists()


def test_diff_shows_changes_and_exits_1_only_with_exit_code(
    working_folder: Path, make_plan: Planned, run_cli: RunCli
) -> None:
    code, out, _ = run_cli("diff", "mine")
    assert code == 0
    assert "+[program:worker-1]" in out
    code, _, err = run_cli("diff", "mine", "--exit-code")
    assert (code, err.splitlines()[-1]) == (1, "mine: the deployment differs from the files")


def test_deploy_does_nothing_without_confirmation(
    working_folder: Path, make_plan: Planned, fake_engine_env: Path, run_cli: RunCli
) -> None:
    code, _, err = run_cli("deploy", "mine")
    assert code == 2
    assert err.endswith("Deploy this? No terminal to confirm on; pass --yes\n")
    assert make_plan().directory.load_deployment() is None
    assert "not of this repository" not in err


def test_deploy_says_that_it_runs_what_a_template_of_others_renders(
    working_folder: Path, make_plan: Planned, fake_engine_env: Path, run_cli: RunCli
) -> None:
    with (working_folder / "mine" / "local.conf.j2").open("a") as template:
        template.write("[program:more]\ncommand = curl https://example.org\n")
    code, _, err = run_cli("deploy", "mine")
    assert code == 2
    assert (
        "mine/local.conf.j2: not of this repository. Deploying runs the commands that it renders on this machine, with "
        "your permissions. Read them first if somebody else wrote them: `blueprint diff`.\n"
    ) in err
    assert err.endswith("Deploy this? No terminal to confirm on; pass --yes\n")


def test_a_deployment_is_deployed_inspected_updated_and_destroyed(
    working_folder: Path, make_plan: Planned, fake_engine_env: Path, run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = run_cli("status", "mine")
    assert (code, out) == (1, "")
    assert err == "mine: not deployed here. Fix: run blueprint deploy mine\n"
    code, _, err = run_cli("logs", "mine")
    assert (code, err) == (1, "mine: no logs; nothing has run here yet\n")
    code, _, err = run_cli("status", "mine", "--starts")
    assert (code, err) == (1, "mine: no replica runs. Fix: run blueprint deploy mine\n")
    monkeypatch.chdir(working_folder / "mine")
    code, out, err = run_cli("status", ".", "--starts", "--json")
    assert (code, json.loads(out), err) == (1, {"starts": []}, "mine: no replica runs. Fix: run blueprint deploy .\n")
    monkeypatch.chdir(working_folder)

    code, out, err = run_cli("deploy", "mine", "--yes")
    url = make_plan().deployment.url
    assert code == 0
    assert f"mine is up at {url}" in out
    assert f"curl {url}/v1/chat/completions" in out
    assert "The weights are random numbers" in out
    assert "blueprint destroy mine" in out
    assert "The engine runs on this machine's CPU in place of" in err

    code, out, _ = run_cli("deploy", "mine", "--yes")
    assert code == 0
    assert "mine: no change; it is up" in out

    code, out, _ = run_cli("status", "mine", "--json")
    status = json.loads(out)
    assert code == 0
    assert status["url"] == url
    assert {process["name"]: process["port"] for process in status["processes"]} == {
        name: port
        for name, port in make_plan().directory.load_ports().items()
        if name not in ("router-admin", "router-metrics")
    }
    code, out, _ = run_cli("status", "mine")
    assert code == 0
    rows = {line.split()[1]: line.split()[3] for line in out.splitlines() if line.startswith("│")}
    assert rows == dict.fromkeys(["aws", "router", "worker-0", "worker-1"], "ready")

    code, out, _ = run_cli("status", "mine", "--starts", "--json")
    starts = json.loads(out)["starts"]
    assert code == 0
    assert [start["name"] for start in starts] == ["worker-0", "worker-1"]
    assert all(start["first_answer_s"] >= 0 for start in starts), "whole seconds: 0 on an idle machine"
    assert {start["load_s"] for start in starts} == {None}, "the stand-in logs nothing of its start"
    code, out, _ = run_cli("status", "mine", "--starts")
    assert code == 0
    assert f"{starts[0]['first_answer_s']:.1f}" in out

    code, out, _ = run_cli("logs", "mine", "worker-0")
    assert (code, out) == (0, "serving tiny\n")
    code, out, _ = run_cli("logs", "mine", "--lines", "1")
    assert "worker-1 | serving tiny" in out
    code, _, err = run_cli("logs", "mine", "worker-7")
    assert code == 2
    assert err == (
        'PROCESS: "worker-7": mine has no such process. Fix: use one of aws, router, supervisord, worker-0, worker-1.\n'
    )

    (working_folder / "mine" / "blueprint.yaml").write_text("broken: [")
    assert run_cli("status", "mine")[0] == 0, "what runs can be looked at and ended while its file is being edited"
    code, _, err = run_cli("destroy", "mine")
    assert code == 2
    assert "Stop mine and delete .blueprint/mine? No terminal to confirm on; pass --yes" in err
    assert run_cli("destroy", "mine", "--yes")[0] == 0
    assert not (working_folder / ".blueprint").exists()
    assert not (working_folder / "rendered").exists()


def test_destroy_without_a_deployment_succeeds(working_folder: Path, run_cli: RunCli) -> None:
    code, out, _ = run_cli("destroy", "mine")
    assert (code, out) == (0, "mine: not deployed here\n")


@pytest.mark.parametrize("command", ["status", "logs", "validate", "destroy"])
def test_a_deployment_of_another_directory_is_not_called_missing(
    working_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run_cli: RunCli, command: str
) -> None:
    config = working_folder / ".blueprint" / "mine" / "supervisord.conf"
    config.parent.mkdir(parents=True)
    config.touch()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert run_cli(command, str(working_folder / "mine")) == (
        2,
        "",
        f"mine: deployed from {working_folder}, and not from {elsewhere}. Fix: run the command in that directory.\n",
    )
    config.unlink()
    code, out, err = run_cli("destroy", str(working_folder / "mine"))
    assert (code, out, err) == (0, "mine: not deployed here\n", "")


def test_status_names_the_process_that_does_not_run(
    working_folder: Path, make_plan: Planned, fake_engine_env: Path, run_cli: RunCli
) -> None:
    run_cli("deploy", "mine", "--yes")
    supervisord = supervisor.find_running(make_plan().directory)
    assert supervisord is not None
    supervisord.stop("worker-1")
    code, out, err = run_cli("status", "mine")
    assert (code, err) == (1, "mine: not ready: worker-1\n")
    assert "stopped" in out


def test_logs_follow_new_lines(working_folder: Path, make_plan: Planned) -> None:
    run = make_plan().directory
    run.create()
    run.get_log_path("worker-0").write_text("old 1\nold 2\n")
    command = ["logs", "mine", "worker-0", "--follow", "--lines", "1"]
    program = "from llm_serving.cli.main import main; main()"
    follower = subprocess.Popen([sys.executable, "-c", program, *command], stdout=subprocess.PIPE, text=True)
    assert follower.stdout is not None
    try:
        assert follower.stdout.readline() == "old 2\n"
        with run.get_log_path("worker-0").open("a") as log:
            log.write("new")
            log.flush()
            time.sleep(0.5)
            log.write(" line\n")
        assert follower.stdout.readline() == "new line\n", "a line shows when it is whole"
        run.get_log_path("worker-0").write_text("x\n")
        assert follower.stdout.readline() == "x\n", "a log that begins anew is followed"
    finally:
        follower.terminate()
        follower.wait(60)


def _kill(plan: DeploymentPlan, name: str) -> None:
    """Kill a process's command, which its subreaper and the supervisor then notice."""
    supervisord = supervisor.find_running(plan.directory)
    assert supervisord is not None
    psutil.Process(supervisord.read_state(name).pid).children()[0].kill()
    port = plan.directory.load_ports()[name]
    processes.wait_until(lambda: processes.is_free(port), f"the end of {name}", 90)


def test_status_exits_1_after_a_worker_was_killed_until_it_answers_again(
    working_folder: Path, make_plan: Planned, fake_engine_env: Path, run_cli: RunCli
) -> None:
    run_cli("deploy", "mine", "--yes")
    assert run_cli("status", "mine")[0] == 0
    (fake_engine_env / "hold").touch()  # however late the status is asked for
    _kill(make_plan(), "worker-0")
    code, out, err = run_cli("status", "mine", "--json")
    assert code == 1
    assert "worker-0" in err
    states = {process["name"]: process["state"] for process in json.loads(out)["processes"]}
    assert states.pop("worker-0") in ("starting", "failed")
    assert set(states.values()) == {"ready"}
    (fake_engine_env / "hold").unlink()
    processes.wait_until(lambda: run_cli("status", "mine")[0] == 0, "the worker's return", 90)


def test_validate_refuses_a_deployment_whose_embedded_aws_was_killed(
    working_folder: Path, make_plan: Planned, fake_engine_env: Path, run_cli: RunCli
) -> None:
    run_cli("deploy", "mine", "--yes")
    _kill(make_plan(), "aws")
    code, _, err = run_cli("validate", "mine")
    assert code == 3
    assert err.startswith("mine: aws does not run: ")
    assert err.endswith("Fix: `blueprint deploy` starts it again with its data.\n")


def test_a_measurement_is_said_to_be_without_changes_that_were_not_deployed(
    working_folder: Path, make_plan: Planned, fake_engine_env: Path, run_cli: RunCli, capfd: pytest.CaptureFixture[str]
) -> None:
    run_cli("deploy", "mine", "--yes")
    blueprint = working_folder / "mine" / "blueprint.yaml"
    deployed = blueprint.read_text()

    def find_changes(old: str, new: str) -> str:
        assert old in deployed
        blueprint.write_text(deployed.replace(old, new))
        capfd.readouterr()
        serving.print_changes(TARGET, Path("mine"), Path("fleet.yaml"))
        return capfd.readouterr().err

    assert find_changes("context: 2k", "context: 1k") == (
        "mine: what runs is measured, without the changes to its files since the deploy. "
        "Fix: run blueprint deploy mine; blueprint diff shows them.\n"
    )
    assert find_changes("p95: 5000", "p95: 4000") == "", "limits need no deploy"
    (working_folder / "fleet.yaml").unlink()
    assert find_changes("context: 2k", "context: 1k") == ""


def test_a_deployment_whose_directory_was_removed_is_reported_and_destroyed(
    working_folder: Path, make_plan: Planned, fake_engine_env: Path, run_cli: RunCli
) -> None:
    run_cli("deploy", "mine", "--yes")
    shutil.rmtree(".blueprint")
    for command in ("status", "validate"):
        code, out, err = run_cli(command, "mine", "--json")
        assert code == 3
        assert err.startswith("mine: .blueprint/mine was removed while it ran; ")
        assert json.loads(out) == {"ok": False, "mistakes": [{"message": err.strip()}]}
    assert run_cli("destroy", "mine", "--yes")[0] == 0
    assert run_cli("destroy", "mine", "--yes")[1] == "mine: not deployed here\n"
