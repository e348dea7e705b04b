"""`blueprint tune` on a target that starts the server with known delays in place of engines."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from llm_serving import paths, program
from llm_serving.cli import main
from llm_serving.kinds.serving.kind import ServingKind
from llm_serving.settings.errors import CheckFailed
from llm_serving.targets import registry
from llm_serving.targets.base import DeploymentStatus, ValidationInputs
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.local.target import LocalTarget
from llm_serving.validation.base import ValidationOptions
from llm_serving.validation.load_target import LoadTarget
from llm_serving.validation.search.knee import Point
from llm_serving.workflows import tune
from tests import known_server
from tests.known_server import Behaviour
from tests.validation.conftest import ignore_busy_machine, is_undisturbed, repeat_disturbed
from tests.validation.search.test_knee import build_point

BLUEPRINT = """\
# What I serve.
pattern: aggregated
model: tiny
context: 1k
roles:
  worker: {pool: general, replicas: 1} # one is enough
tuning:
  sequences: 4 # by hand
traffic: {arrivals: 8/s, process: constant, input_tokens: 16, output_tokens: 8, warm_up: 1}
slo:
  ttft_ms: {p50: 400}
"""


class KnownTarget(LocalTarget):
    """This machine, with a server that answers as many requests at once as `tuning.sequences` says."""

    def __init__(self) -> None:
        self.deployed: list[int | None] = []
        self.worker: dict[str, Any] = {}
        """Settings of the role that is deployed."""
        self.plan: DeploymentPlan | None = None
        self.failing: set[int] = set()
        self.destroyed = 0
        self.late_s = 0.0
        """How long the machine held up a server at the most."""
        self.others: list[dict[str, Any]] = []
        """Processes of the user's own deployment."""

    def deploy(self, plan: DeploymentPlan, *_: object, **__: object) -> DeploymentPlan:
        assert plan.deployment.name == "mine-tune"
        sequences = plan.deployment.tuning.sequences
        self.deployed.append(sequences)
        [file] = Path("runs").rglob("mine-tune/blueprint.yaml")
        self.worker = yaml.safe_load(file.read_text())["roles"]["worker"]
        if sequences in self.failing:
            raise CheckFailed("worker-0 ended at its start")
        self.plan = plan
        return plan

    @contextlib.contextmanager
    def open_validation(self, folder: Path, *_: object, **__: object) -> Iterator[ValidationInputs]:
        assert self.plan
        deployment = self.plan.deployment
        with known_server.run_server(Behaviour(0.1, 0.01, slots=deployment.tuning.sequences or 0)) as url:
            root = folder.parent
            options = ValidationOptions(logs=root / "logs", runs=root / "reports", folder=folder)
            yield ValidationInputs(deployment.model_copy(update={"url": url}), options)
            self.late_s = max(self.late_s, known_server.ask(url)["late_s"])

    def read_status(self, folder: Path, *_: object) -> DeploymentStatus:
        rows = self.others if folder.name == "mine" else [{"name": "worker-0"}] if self.plan else []
        return DeploymentStatus(folder.name, None, "processes", rows, "")

    def destroy(self, *_: object, **__: object) -> bool:
        self.plan = None
        self.destroyed += 1
        return True


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KnownTarget:
    """The target, and in the working directory the blueprint `mine`."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(paths.PATTERNS / "aggregated", tmp_path / "mine")
    shutil.copy(paths.ROOT / "fleet.yaml", tmp_path)
    Path("mine/blueprint.yaml").write_text(BLUEPRINT)
    Path("mine/.#blueprint.yaml").symlink_to("me@here.1:2")  # Emacs's mark of a file that is being edited
    target_double = KnownTarget()
    monkeypatch.setattr(registry, "load_target", lambda _: target_double)
    return target_double


class KnownLoader:
    """Sends nothing: a configuration of N sequences keeps 6 N requests a second."""

    sent: list[float]

    def __init__(self, target: LoadTarget, *_: object, **__: object) -> None:
        self.sequences = target.settings["tuning"]["sequences"]

    def measure(self, load: float, earlier: Point | None) -> Point:
        self.sent.append(load)
        if len(self.sent) == getattr(KnownLoader, "interrupted_at", 0):
            raise KeyboardInterrupt
        return build_point(load, "pass" if load <= 6 * self.sequences else "fail", longer=earlier is not None)


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> type[KnownLoader]:
    """No load is sent."""
    monkeypatch.setattr(KnownLoader, "sent", [], raising=False)
    monkeypatch.setattr(KnownLoader, "interrupted_at", 0, raising=False)
    monkeypatch.setattr(tune, "Loader", KnownLoader)
    return KnownLoader


def _tune(*arguments: str) -> int:
    return main.run(["tune", "mine", "--yes", *arguments])


@pytest.mark.timeout(900)
def test_configurations_are_deployed_one_after_the_other_and_losers_dropped(
    target: KnownTarget, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two requests at once are 11.8/s of the server, one is 5.9/s."""
    arguments = ["--over", "tuning.sequences=2,1", "--precision", "100", "--point-time", "3s", "--json"]

    def tune_once() -> Any:
        shutil.rmtree("runs", ignore_errors=True)
        target.deployed, target.late_s = [], 0.0
        capsys.readouterr()
        with ignore_busy_machine():
            assert _tune(*arguments) == 0
        return json.loads(capsys.readouterr().out)

    def list_points() -> Iterator[Path]:
        return (file.parent for file in Path("runs").rglob("report.json"))

    state = repeat_disturbed(tune_once, lambda _: is_undisturbed(list_points(), {"late_s": target.late_s}))
    assert state["best"] == 1 and state["finished"]
    assert [trial["state"] for trial in state["trials"]] == ["kept", "dropped"]
    assert state["trials"][0]["kept"]["load"] == 8
    assert len(state["trials"][1]["points"]) == 1
    assert target.deployed == [2, 1] and target.plan is None, "nothing is left"
    (folder,) = Path("runs/mine").iterdir()
    assert {path.name for path in folder.iterdir() if path.is_file()} == {"tune.json", "tune.html", "best.yaml"}
    assert not (folder / "mine-tune").exists()
    assert all((folder / point["run"] / "report.json").is_file() for point in state["trials"][0]["points"])


def test_the_users_blueprint_stays_and_the_best_one_has_its_comments(
    target: KnownTarget, loader: type[KnownLoader], capsys: pytest.CaptureFixture[str]
) -> None:
    assert _tune("--over", "tuning.sequences=1,16,8", "--over", "context=1k,2k") == 0
    assert Path("mine/blueprint.yaml").read_text() == BLUEPRINT
    (folder,) = Path("runs/mine").iterdir()
    expected = BLUEPRINT.replace("sequences: 4", "sequences: 16")
    assert (folder / "best.yaml").read_text() == expected
    out = capsys.readouterr().out
    assert "BEST tuning.sequences=16, context=1k keeps" in out
    assert max(map(len, out.splitlines())) <= 100
    page = (folder / "tune.html").read_text()
    assert page.count('class="loads"') == 6
    assert "<script" not in page


def test_an_interrupted_tuning_goes_on_without_sending_a_load_twice(
    target: KnownTarget, loader: type[KnownLoader], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--over", "tuning.sequences=1,2,4"]
    monkeypatch.setattr(loader, "interrupted_at", 7)
    assert _tune(*arguments) == program.INTERRUPTED
    assert target.plan is None, "it destroys what it deployed"
    deployed, sent = len(target.deployed), len(loader.sent)
    monkeypatch.setattr(loader, "interrupted_at", 0)
    assert _tune(*arguments) == 0
    assert "Resuming runs/mine/tune-" in capsys.readouterr().err
    resumed = json.loads(next(Path("runs/mine").glob("tune-*/tune.json")).read_text())
    assert len(list(Path("runs/mine").iterdir())) == 1
    assert len(target.deployed) <= deployed + 2
    # The interrupted load alone is sent again.
    points = [point for trial in resumed["trials"] for point in trial["points"]]
    assert len(loader.sent) == sum(1 + point["longer"] for point in points) + 1
    assert sent < len(loader.sent)
    # Negative control: with other values it starts anew, and with another file of the blueprint.
    assert _tune("--over", "tuning.sequences=1,2") == 0
    assert len(list(Path("runs/mine").iterdir())) == 2
    monkeypatch.setattr(loader, "interrupted_at", len(loader.sent) + 3)
    assert _tune("--over", "tuning.sequences=2,8") == program.INTERRUPTED
    monkeypatch.setattr(loader, "interrupted_at", 0)
    Path("mine/prompts.jsonl").write_text("{}")
    assert _tune("--over", "tuning.sequences=2,8") == 0
    assert len(list(Path("runs/mine").iterdir())) == 4


@pytest.mark.usefixtures("loader")
def test_a_time_limit_ends_it_with_the_best_so_far(
    target: KnownTarget, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter(range(0, 100_000, 60))  # a minute passes between any two looks at it
    monkeypatch.setattr(tune, "time", SimpleNamespace(time=lambda: next(clock)))
    assert _tune("--over", "tuning.sequences=1,2,4,8,16", "--time-limit", "5min", "--json") == 0
    state = json.loads(capsys.readouterr().out)
    assert state["stopped"] == "the time limit of 5 min was reached"
    assert not state["finished"] and state["best"]
    assert state["trials"][-1]["state"] == "not tried"


class PassingTime:
    """A wall clock on which a minute passes between any two looks at it; no other is read, for those stop in sleep."""

    def __init__(self) -> None:
        self.now = 0.0

    def time(self) -> float:
        self.now += 60
        return self.now


@pytest.fixture
def priced(monkeypatch: pytest.MonkeyPatch) -> PassingTime:
    """Each configuration has one of eight GPUs of 60 USD/h, a dollar a minute; the clock is returned."""
    clock = PassingTime()
    monkeypatch.setattr(ServingKind, "price", lambda *_: 7.5)
    monkeypatch.setattr(ServingKind, "price_instances", lambda *_: 60.0)
    monkeypatch.setattr(tune, "time", clock)
    return clock


@pytest.mark.usefixtures("loader", "priced")
def test_a_spend_limit_ends_it_with_the_best_so_far(target: KnownTarget, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--over", "tuning.sequences=1,2,4,8,16", "--time-limit", "10h", "--json"]
    assert _tune(*command, "--spend-limit", "10") == 0
    state = json.loads(capsys.readouterr().out)
    assert state["stopped"] == "the spend limit of 10 USD was reached"
    assert not state["finished"] and state["best"] and state["trials"][-1]["state"] == "not tried"
    assert 10 <= state["usd"] < 20, "what was deployed then had cost little more"
    assert target.plan is None, "nothing is left"
    # The same command counts what was spent before: it deploys nothing.
    deployed = len(target.deployed)
    assert _tune(*command, "--spend-limit", "10") == 0
    assert json.loads(capsys.readouterr().out)["usd"] == state["usd"] and len(target.deployed) == deployed
    # Negative control: with more to spend it goes on to the end.
    assert _tune(*command, "--spend-limit", "1000") == 0
    assert json.loads(capsys.readouterr().out)["finished"]


@pytest.mark.usefixtures("loader")
def test_what_is_tried_costs_until_it_is_gone(
    target: KnownTarget,
    priced: PassingTime,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def measure_cost(removal_s: float) -> float:
        def destroy(*_: object, **__: object) -> bool:
            priced.now += removal_s
            target.plan = None
            return True

        monkeypatch.setattr(target, "destroy", destroy)
        assert _tune("--over", "tuning.sequences=1", "--time-limit", "10h", "--json") == 0
        cost: float = json.loads(capsys.readouterr().out)["usd"]
        return cost

    quick = measure_cost(0)
    assert measure_cost(600) == pytest.approx(quick + 10), "ten minutes at a dollar a minute"


@pytest.mark.usefixtures("loader")
def test_a_configuration_that_does_not_start_is_passed_over_and_tried_again_by_the_same_command(
    target: KnownTarget, capsys: pytest.CaptureFixture[str]
) -> None:
    target.failing = {1}
    assert _tune("--over", "tuning.sequences=1,2") == 0
    out = capsys.readouterr().out
    assert "1: worker-0 ended at its start" in out
    assert "1 of 2 configurations failed; the same command goes on" in out
    target.failing, target.deployed = set(), []
    assert _tune("--over", "tuning.sequences=1,2") == 0
    assert target.deployed == [1], "what was measured of the other stays"
    assert "configurations failed" not in capsys.readouterr().out
    target.failing, target.destroyed = {1, 2}, 0
    assert _tune("--over", "tuning.sequences=2,1") == 1
    assert target.destroyed == 1, "what a failed start left goes too"
    assert capsys.readouterr().err.endswith(
        "no configuration of mine was shown to keep its SLO\n"
        "  tuning.sequences=2: failed: worker-0 ended at its start\n"
        "  tuning.sequences=1: failed: worker-0 ended at its start\n"
        "  2 of 2 configurations failed\n"
    )


@pytest.mark.usefixtures("loader")
def test_a_configuration_that_cannot_work_is_refused_before_anything_is_deployed(
    target: KnownTarget, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _tune("--over", "roles.worker.replicas=1,5000", "--json") == 0
    state = json.loads(capsys.readouterr().out)
    assert [trial["state"] for trial in state["trials"]] == ["kept", "refused"]
    assert state["trials"][1]["why"].startswith("roles.worker.replicas: ")


@pytest.mark.usefixtures("loader", "target")
def test_what_has_no_price_is_not_held_against_what_has_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prices = {1: 60.0, 2: None}
    monkeypatch.setattr(ServingKind, "price", lambda _, deployment: prices[deployment.tuning.sequences])
    assert _tune("--over", "tuning.sequences=1,2", "--json") == 0
    state = json.loads(capsys.readouterr().out)
    assert [trial["state"] for trial in state["trials"]] == ["kept", "refused"]
    assert state["notes"] == ["traffic asks for 8/s, which none keeps: the best one needs more replicas for it."]
    # Negative control: none has one, and the second carries the 8/s.
    monkeypatch.setattr(ServingKind, "price", lambda *_: None)
    assert _tune("--over", "tuning.sequences=1,2", "--json") == 0
    state = json.loads(capsys.readouterr().out)
    assert (state["best"], state["notes"]) == (2, [])


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize(
    ("replicas", "number"), [("1..4, scale: {queue: 4}", 1), ("0..4", 1), ("2..4", 2), ("2", None)]
)
def test_replicas_that_come_and_go_are_tried_at_their_least_number(
    target: KnownTarget, capsys: pytest.CaptureFixture[str], replicas: str, number: int | None
) -> None:
    Path("mine/blueprint.yaml").write_text(text := BLUEPRINT.replace("replicas: 1}", f"replicas: {replicas}}}"))
    assert _tune("--over", "tuning.sequences=4", "--json") == 0
    captured = capsys.readouterr()
    note = f"roles.worker.replicas come and go by load: tried with {number}."
    assert json.loads(captured.out)["notes"] == ([note] if number else [])
    assert (note in captured.err) == (number is not None), "before anything is deployed"
    assert (target.worker["replicas"], target.worker.get("scale")) == (number or 2, None)
    [best] = Path("runs").rglob("best.yaml")
    assert best.read_text() == text


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--over: there is nothing to try. Fix: use --over tuning.batch_tokens=2k,8k."),
        (["--over", "tuning.sequence=1,2"], '--over: "tuning.sequence": tuning has no key sequence to vary.'),
        (
            ["--over", "traffic.arrivals=1/s,2/s"],
            '--over: "traffic.arrivals": traffic is the same for all that are compared.',
        ),
        (
            ["--over", "tuning.sequences=1,many"],
            "--over tuning.sequences: many: it is a text. Fix: use a whole number.",
        ),
        (
            ["--over", "roles.worker.replicas=5000,6000"],
            "--over: every configuration is refused. The first: roles.worker",
        ),
        (
            ["--over", "tuning.sequences=1", "--over", "tuning.sequences=2"],
            "--over: tuning.sequences more than once.",
        ),
        (
            ["--over", f"tuning.sequences={','.join(map(str, range(1, 80)))}"],
            "--over: 79 configurations: at most 64",
        ),
        (
            ["--over", "tuning.sequences=1,2", "--spend-limit", "5"],
            "--spend-limit: 5: the target local has no known prices to hold it against. Fix: use --time-limit only.",
        ),
    ],
)
def test_bad_input_is_refused_before_anything_is_deployed(
    target: KnownTarget, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _tune(*arguments) == 2
    assert capsys.readouterr().err.startswith(message)
    assert target.deployed == []
    assert not list(Path().glob("runs/mine/*"))


@pytest.mark.usefixtures("loader")
def test_a_deployment_on_the_same_machine_is_not_measured_beside(
    target: KnownTarget, capsys: pytest.CaptureFixture[str]
) -> None:
    target.others = [{"name": "worker-0", "state": "ready"}]
    assert _tune("--over", "tuning.sequences=1,2") == 3
    assert capsys.readouterr().err == (
        "mine is up on this machine and would share it with what is tried. Fix: run blueprint destroy mine.\n"
    )
