from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from llm_serving import console, program
from llm_serving.settings.errors import InputError, Unavailable


def _build_table_of(text: str) -> Table:
    table = Table()
    table.add_column(text)
    table.add_row(text)
    return table


def test_a_command_is_printed_so_that_a_shell_runs_the_same_again(tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    folder.mkdir()
    line = console.quote_command(["printf", "%s|", "a b", "$HOME", "it's"], cwd=folder, environment={"X": "1 2"})
    result = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True)
    assert result.stdout == "a b|$HOME|it's|"


def test_run_returns_the_output_and_appends_it_to_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "logs" / "echo.log"
    assert console.run(["echo", "one"], log=log) == "one\n"
    assert console.run(["echo", "two"], log=log) == "two\n"
    assert log.read_text() == "one\ntwo\n"
    assert "$ echo one" in capsys.readouterr().err


def test_a_failed_command_has_its_exit_code_last_lines_and_log(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    with pytest.raises(console.CommandFailed) as failed:
        console.run(["sh", "-c", "seq 1 50; exit 7"], log=log)
    text = str(failed.value)
    assert "failed: exit code 7" in text and "    50" in text and "    30\n" not in text and "x.log" in text
    assert failed.value.output.startswith("1\n2\n")


def test_a_command_that_hangs_times_out(tmp_path: Path) -> None:
    with pytest.raises(console.CommandFailed, match="failed: timed out after 1 s"):
        console.run(["sleep", "300"], log=tmp_path / "x.log", timeout_s=1)


def test_a_missing_program_is_an_environment_problem(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"no-such-program: not found on PATH\. Fix: install it\.") as missing:
        console.run(["no-such-program"], log=tmp_path / "x.log")
    assert missing.value.exit_code == 3


def test_a_step_shows_its_title_note_and_time(capsys: pytest.CaptureFixture[str]) -> None:
    with console.step("Counting") as step:
        step.note = "12 found"
    assert step.seconds > 0
    errors = capsys.readouterr().err
    assert "▸ Counting" in errors and re.search(r"✓ Counting: 12 found \(\d+\.\d s\)", errors)


def test_a_failed_step_shows_as_failed_and_raises_the_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError), console.step("Reading"):
        raise InputError("no")
    assert "✗ Reading" in capsys.readouterr().err


def test_output_of_a_command_is_not_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argument = "[red]x[/nonsense]"
    console.run([sys.executable, "-c", "print(1)", argument], log=tmp_path / "x.log")
    assert shlex.quote(argument) in capsys.readouterr().err


def test_cells_of_a_table_and_parts_of_a_group_are_not_markup(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("[key]")
    table.add_row("[a.example.com]")
    table.add_row("a[/b]")
    console.out.print(Group("runs/[a]/report.html", table))
    printed = capsys.readouterr().out
    assert all(text in printed for text in ("runs/[a]/report.html", "[key]", "[a.example.com]", "a[/b]"))


def test_a_summary_has_successful_steps_without_nested_ones() -> None:
    with console.record_steps() as steps:
        with console.step("one"), console.step("inside"):
            pass
        with pytest.raises(InputError), console.step("failed"):
            raise InputError("no")
        with console.step("two"):
            pass
    with console.step("later"):
        pass
    assert [step.title for step in steps] == ["one", "two"]


@pytest.mark.parametrize("terminal", [True, False])
def test_a_result_wraps_at_words_in_a_terminal_only(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console.out, "_width", 40)
    monkeypatch.setattr(console.out, "_force_terminal", terminal)
    sentence = "The weights are random numbers from a fixed seed: the text has no meaning."
    console.print_result(sentence)
    lines = capsys.readouterr().out.splitlines()
    assert " ".join(line.rstrip() for line in lines) == sentence
    assert len(lines) == (2 if terminal else 1)


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_gets_its_signal_and_time_to_end(
    tmp_path: Path, by: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    code = (
        "import pathlib, signal, sys, time\n"
        "def end(number, frame):\n"
        "    time.sleep(0.5)\n"
        "    pathlib.Path('told').write_text(signal.Signals(number).name)\n"
        "    sys.exit()\n"
        "for number in (signal.SIGINT, signal.SIGTERM):\n"
        "    signal.signal(number, end)\n"
        "pathlib.Path('up').touch()\n"
        "time.sleep(60)\n"
    )

    def interrupt() -> None:
        if (tmp_path / "up").exists():
            raise KeyboardInterrupt

    command = console.Command([sys.executable, "-c", code], tmp_path / "log", cwd=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        console.run_together([command], on_poll=interrupt, grace_s=60, stop_signal=by, timeout_s=60)
    assert (tmp_path / "told").read_text() == by.name
    assert "Interrupted: running commands get up to 60 s to end" in capsys.readouterr().err


ESCAPES = "\x1b[2K\x1b[1Ahidden\x1b]0;title\x07 \x9b2J \u202e"


@pytest.mark.parametrize("make_renderable", [str, Text, _build_table_of, Panel])
def test_a_terminal_gets_no_control_sequence_of_a_printed_text(
    make_renderable: Callable[[str], RenderableType],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    terminal = console._Console(force_terminal=True, color_system="truecolor", width=200)
    terminal.print(make_renderable(f"a\tb {ESCAPES}"), style="red")
    printed = capsys.readouterr().out
    without_colors = re.sub(r"\x1b\[[0-9;]*m", "", printed)
    assert without_colors != printed, "colors are of this program"
    assert without_colors.replace("\n", "").isprintable()
    assert "\\x1b[2K\\x1b[1Ahidden\\x1b]0;" in without_colors


def test_a_line_of_a_log_is_shown_without_its_colors_and_with_other_sequences_spelled_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    console.print_log("router | \x1b[2m2026-11-29\x1b[0m \x1b[1;32mINFO\x1b[0m [red]ready[/red] a.rs:100: \x1b[2K")
    assert capsys.readouterr().out == "router | 2026-11-29 INFO [red]ready[/red] a.rs:100: \\x1b[2K\n"


def test_an_error_has_its_lines_and_no_control_sequence(capsys: pytest.CaptureFixture[str]) -> None:
    assert console.print_error(Unavailable("one\n\ttwo \x1b[2J\r")) == 3
    assert program.print_error("three \x1b[2J \x1b[1;37mwhite\x1b[0m", 4) == 4
    console.err.print("gateway starting; \x1b[32mgreen \x1b[1;3")
    written = "one\n\ttwo \\x1b[2J\\r\nthree \\x1b[2J white\ngateway starting; green \n"
    assert capsys.readouterr().err == written
