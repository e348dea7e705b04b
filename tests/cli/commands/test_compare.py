"""`blueprint compare`: exit codes, JSON, and the page."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from llm_serving import paths
from llm_serving.cli import main
from tests.validation.reports.test_comparison import _simulate


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs of a service, and one of a slower one."""
    monkeypatch.chdir(tmp_path)
    for name, seed, factor in (("first", 1, 1.0), ("second", 2, 1.0), ("slow", 3, 2.0)):
        _write_run(Path(name), seed, factor)


def _write_run(folder: Path, seed: int, factor: float = 1.0, name: str = "mine", count: int = 400) -> None:
    run = _simulate(seed, factor=factor, count=count)
    folder.mkdir(parents=True)
    (folder / "report.json").write_text(json.dumps({**run.report, "name": name, "requests": {"total": count}}))
    (folder / "requests.jsonl").write_text("".join(sample.to_json() + "\n" for sample in run.samples))


@pytest.mark.usefixtures("runs")
def test_runs_are_compared_with_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["compare", "first", "second", "slow", "--json", "--page", "page.html"]) == 0
    payload = json.loads(capsys.readouterr().out)
    assert payload["baseline"] == "mine first"
    assert [(run["name"], run["verdict"]) for run in payload["runs"]] == [
        ("mine second", "no difference shown"),
        ("mine slow", "worse"),
    ]
    assert "mine slow" in Path("page.html").read_text()


@pytest.mark.usefixtures("runs")
def test_the_gate_exits_1_if_a_run_is_worse(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["compare", "first", "second", "--gate"]) == 0
    assert "NO DIFFERENCE SHOWN mine second" in capsys.readouterr().out
    assert main.run(["compare", "first", "slow", "--gate"]) == 1
    assert capsys.readouterr().err == "worse than mine first: mine slow\n"


@pytest.mark.usefixtures("runs")
def test_the_gate_exits_1_if_too_little_is_measured_to_tell(capsys: pytest.CaptureFixture[str]) -> None:
    _write_run(Path("short"), 4, 2.0, count=64)
    assert main.run(["compare", "first", "short"]) == 0
    assert main.run(["compare", "first", "short", "--gate"]) == 1
    assert capsys.readouterr().err == (
        "only failures could be compared:\n"
        "mine short: 64 requests: the moment may be what differs; needs 100, or --runs 5 of blueprints\n"
    )


@pytest.mark.usefixtures("runs")
def test_the_gate_exits_1_if_the_traffic_was_another(capsys: pytest.CaptureFixture[str]) -> None:
    """Half the arrivals would let a slower service through."""
    report = json.loads(Path("second/report.json").read_text())
    for traffic, code in (({"arrivals": 10, "requests": 400, "seed": 7}, 0), ({"arrivals": 5}, 1)):
        report["settings"]["traffic"] = traffic
        Path("second/report.json").write_text(json.dumps(report))
        assert main.run(["compare", "first", "second", "--gate"]) == code
    assert capsys.readouterr().err == "other traffic than mine first: mine second; only the same shows a change\n"
    assert main.run(["compare", "first", "second"]) == 0


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["first"], "RUN: a comparison takes two or more. Fix: run blueprint compare RUN RUN."),
        (["first", "./second/../first", "--gate"], "RUN: first: it is named twice, and has no difference from itself."),
        (["first", "none"], "RUN: none: there is no such folder. Fix: use a folder below runs/."),
        (["first", "first/report.json"], "RUN: first/report.json: it is a file. Fix: use a folder below runs/."),
        (["first", "broken"], "RUN: broken: it is not a validation's folder:"),
        (
            ["first", "old"],
            "RUN: old: another version of this program wrote it (0.0.9): it has no 'duration_s'. Fix: validate again.",
        ),
        (["first", "older"], "RUN: older: another version of this program wrote it: it has no 'queue_share'."),
        (
            ["first", "cut"],
            "RUN: cut: it is not a validation's folder: line 400 of requests.jsonl is not a request.",
        ),
        (["first", "half"], "RUN: half: requests.jsonl has 200 of its 400 requests. Fix: validate again."),
        (["first", "swept"], "RUN: swept: it is a sweep. Fix: use one of its loads, such as swept/points/8."),
        (["first", "mine"], "RUN: mine: runs/mine has no validation. Fix: run blueprint validate mine."),
        (["mine"], "RUN: mine: runs/mine has no validation. Fix: run blueprint validate mine."),
    ],
)
def test_what_is_no_run_is_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken").mkdir()
    Path("broken/report.json").write_text("{")
    _write_run(Path("old"), 4)
    old = json.loads(Path("old/report.json").read_text())
    del old["duration_s"]
    Path("old/report.json").write_text(json.dumps({**old, "versions": {"blueprint": "0.0.9"}}))
    _write_run(Path("older"), 4)
    Path("older/report.json").write_text(Path("older/report.json").read_text()[:-1] + ', "driver": [{"cpu_share": 0}]}')
    for name, length in (("cut", -5), ("half", None)):
        _write_run(Path(name), 4)
        file = Path(name, "requests.jsonl")
        text = file.read_text()
        file.write_text(text[:length] if length else "".join(text.splitlines(keepends=True)[:200]))
    Path("swept/points/8").mkdir(parents=True)
    Path("swept/sweep.json").write_text("{}")
    _write_blueprint("mine")
    assert main.run(["compare", *arguments]) == 2
    assert capsys.readouterr().err.startswith(message)


def _write_blueprint(name: str) -> None:
    shutil.copytree(paths.PATTERNS / "aggregated", name)


@pytest.mark.usefixtures("runs")
def test_a_blueprint_stands_for_its_newest_validation(capsys: pytest.CaptureFixture[str]) -> None:
    _write_blueprint("mine")
    _write_blueprint("mine-v2")
    _write_run(Path("runs/mine/2026-11-22T10-00-00Z"), 1)
    _write_run(Path("runs/mine/2026-11-23T10-00-00Z"), 2, 2.0)
    _write_run(Path("runs/mine-v2/2026-11-23T11-00-00Z"), 3, 2.0, "mine-v2")
    Path("runs/mine/sweep-2026-11-23T12-00-00Z").mkdir()
    assert main.run(["compare", "mine", "mine-v2"]) == 0
    assert "NO DIFFERENCE SHOWN mine-v2 2026-11-23T11-00-00Z" in capsys.readouterr().out
    # Alone it is compared with its own validation before.
    assert main.run(["compare", "mine", "--gate"]) == 1
    assert capsys.readouterr().err == "worse than mine 2026-11-22T10-00-00Z: mine 2026-11-23T10-00-00Z\n"


@pytest.mark.usefixtures("runs")
def test_the_newest_validations_of_a_blueprint_count_together(capsys: pytest.CaptureFixture[str]) -> None:
    _write_blueprint("mine")
    for hour in range(10):
        _write_run(Path(f"runs/mine/2026-11-22T0{hour}-00-00Z"), hour, 1.0 if hour < 5 else 3.0)
    assert main.run(["compare", "mine", "--runs", "5", "--gate"]) == 1
    titles = [f"mine 2026-11-22T0{hour}-00-00Z with 4 before" for hour in (4, 9)]
    assert capsys.readouterr().err == f"worse than {titles[0]}: {titles[1]}\n"
    assert main.run(["compare", "mine", "--runs", "6"]) == 2
    reason = "RUN: mine: runs/mine has 10 validations, and 12 are compared. Fix: run blueprint validate mine.\n"
    assert capsys.readouterr().err == reason
    assert main.run(["compare", "first", "second", "--runs", "2"]) == 2
    reason = (
        "first is not a blueprint, and only those of a blueprint count together. Fix: use the folder of a blueprint.\n"
    )
    assert capsys.readouterr().err == f"--runs: 2: {reason}"
