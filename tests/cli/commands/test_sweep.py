"""`blueprint sweep` against a server whose capacity is known."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from llm_serving import program
from llm_serving.cli import main
from llm_serving.validation import run
from tests import known_server
from tests.cli.commands.test_validate import LIMIT_MS, _write_blueprint, _write_deployment
from tests.known_server import Behaviour
from tests.validation.conftest import ignore_busy_machine, is_undisturbed, repeat_disturbed

TTFT_S, ITL_S, TOKENS, SLOTS = 0.1, 0.01, 8, 2
CAPACITY = SLOTS / (TTFT_S + ITL_S * (TOKENS - 1))
"""Requests a second: 11.8."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the blueprint `mine`; its traffic is evenly spaced, so that chance decides nothing."""
    monkeypatch.chdir(tmp_path)
    _write_blueprint(tmp_path, LIMIT_MS)
    file = tmp_path / "mine" / "blueprint.yaml"
    load = "arrivals: 8/s\n  process: constant\n  input_tokens: 16\n"
    text = file.read_text().replace("  users: 4\n", f"  {load}")
    file.write_text(text.replace(f"{{p95: {LIMIT_MS}}}", "{p50: 400}"))
    return tmp_path


class Swept(NamedTuple):
    """A sweep that ended."""

    code: int
    payload: Any
    """Of --json."""

    known: dict[str, Any]
    """What the server says of itself."""


Sweeper = Callable[..., Swept]


@pytest.fixture
def sweep(folder: Path, capsys: pytest.CaptureFixture[str]) -> Sweeper:
    """Sweeps a server whose capacity is known, again where the machine held up one of the processes."""

    def _sweep_once(run: Callable[[list[str]], int]) -> Swept:
        for earlier in ("runs", ".blueprint"):
            shutil.rmtree(folder / earlier, ignore_errors=True)
        capsys.readouterr()
        with ignore_busy_machine(), known_server.run_server(Behaviour(TTFT_S, ITL_S, slots=SLOTS)) as url:
            _write_deployment(folder, url)
            code = run(["sweep", "mine", "--json", "--precision", "100", "--point-time", "3s"])
            return Swept(code, json.loads(capsys.readouterr().out), known_server.ask(url))

    def _sweep(run: Callable[[list[str]], int] = main.run) -> Swept:
        return repeat_disturbed(
            lambda: _sweep_once(run),
            lambda swept: is_undisturbed(folder.glob("runs/mine/*/points/*"), swept.known),
        )

    return _sweep


@pytest.mark.timeout(600)
def test_the_knee_lies_at_the_servers_capacity(sweep: Sweeper) -> None:
    code, payload, _ = sweep()
    assert code == 0
    assert payload["kept"]["load"] == 8 < CAPACITY < payload["missed"]["load"] == 16
    assert [point["verdict"] for point in payload["points"]] == ["pass", "fail"]
    assert payload["capacity"]["requests_per_s"] == payload["per_replica"]["worker"] == 8
    assert payload["missed"]["reasons"][0].startswith("ttft_ms.p50: ")
    (saved,) = Path("runs/mine").iterdir()
    assert {path.name for path in saved.iterdir()} == {"sweep.json", "sweep.html", "points"}
    assert json.loads((saved / "sweep.json").read_text()) == payload
    assert all((saved / point["run"] / "report.html").is_file() for point in payload["points"])


@pytest.mark.timeout(600)
def test_an_interrupted_sweep_prints_and_keeps_the_loads_before(
    sweep: Sweeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    validate = run.validate

    def validate_first(deployment: Any, options: Any) -> Any:
        if deployment.traffic.arrivals > 8:
            os.kill(os.getpid(), signal.SIGTERM)
        return validate(deployment, options)

    monkeypatch.setattr(run, "validate", validate_first)
    code, payload, _ = sweep(lambda words: program.run(lambda: main.run(words)))
    assert code == program.INTERRUPTED
    assert (payload["interrupted"], payload["kept"]["load"], payload["missed"]) == (True, 8, None)
    (saved,) = Path("runs/mine").iterdir()
    assert {path.name for path in saved.iterdir()} == {"sweep.json", "sweep.html", "points"}
    assert json.loads((saved / "sweep.json").read_text()) == payload


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--by", "tokens"], '--by: "tokens": there is no such load. Fix: use rate or users.\n'),
        (["--from", "20", "--to", "10"], "--from: 20: it is not below --to, 10. Fix: use 1.25.\n"),
        (
            ["--url", "127.0.0.1:8000"],
            '--url: "127.0.0.1:8000": it is not a URL. Fix: use one such as http://127.0.0.1:8000.\n',
        ),
        (["--to", "0"], "--to: 0: it is not a load. Fix: use a number above 0.\n"),
        (
            ["--point-time", "30"],
            '--point-time: "30": it is not a length of time. Fix: use a length of time in s, min, h or d, such as 30s.\n',
        ),
    ],
)
@pytest.mark.usefixtures("folder")
def test_bad_options_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["sweep", "mine", *arguments]) == 2
    assert capsys.readouterr().err == message


def test_an_slo_without_limits_is_refused_at_its_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / "mine" / "blueprint.yaml"
    file.write_text(file.read_text().replace("ttft_ms: {p50: 400}", "errors: 1%"))
    assert main.run(["sweep", "mine"]) == 2
    line = file.read_text().splitlines().index("slo:") + 1
    assert capsys.readouterr().err == (
        f"mine/blueprint.yaml:{line}:1: slo: it has no limit on a latency that a higher load could miss. "
        "Fix: write ttft_ms: {p95: 800}, for example.\n"
    )


@pytest.mark.usefixtures("folder")
def test_a_deployment_that_is_not_up_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["sweep", "mine"]) == 3
    assert capsys.readouterr().err == "mine: not deployed here. Fix: run blueprint deploy mine\n"
