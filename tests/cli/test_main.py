"""The command line itself: one line for each refusal, the exit code that says what kind it was, never a traceback."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from llm_serving.cli import main
from llm_serving.cli.commands import schema
from llm_serving.settings.errors import CheckFailed, InputError, Unavailable

BLUEPRINT = Path(sys.executable).with_name("blueprint")
ROOT = Path(__file__).parents[2]


def run_shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What bash says to `line`, where `blueprint` is on the PATH."""
    return subprocess.run(
        ["bash", "-c", line],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{BLUEPRINT.parent}:{os.environ['PATH']}", **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["chek"], "blueprint: no such command 'chek'. Did you mean 'check', 'schema'? (blueprint --help shows more)"),
        (["check"], "blueprint check: missing argument 'DIR'. (blueprint check --help shows more)"),
        (["check", "x", "y"], "blueprint check: got unexpected extra argument(s) (y) (blueprint check --help shows more)"),
        (["check", "x", "--flet", "y"], "blueprint check: no such option: --flet (Possible options: --fleet) (blueprint check --help shows more)"),
        (["check", "x", "--fleet"], "blueprint: option '--fleet' requires an argument. (blueprint --help shows more)"),
        (["schema", "x"], "blueprint schema: invalid value for 'file': 'x' is not one of 'fleet', 'blueprint', 'report'. (blueprint schema --help shows more)"),
        (["model", "x"], "blueprint model: no such command 'x'. (blueprint model --help shows more)"),
    ],
)  # fmt: skip
def test_a_wrong_command_line_is_one_line_and_exit_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.splitlines() == [message]


def test_no_argument_at_all_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([]) == 2
    output = capsys.readouterr()
    assert "Usage: blueprint" in output.out
    assert "check" in output.out
    assert output.err == ""


def test_help_is_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["check", "--help"]) == 0
    assert "--fleet" in capsys.readouterr().out


@pytest.fixture
def make_schema_raise(monkeypatch: pytest.MonkeyPatch) -> object:
    """A function that makes `blueprint schema fleet` raise an exception of one's choice."""
    monkeypatch.delenv(main.DEBUG, raising=False)

    def choose(error: BaseException) -> list[str]:
        def raise_error(*_: object) -> str:
            raise error

        monkeypatch.setattr(schema, "render_schema", raise_error)
        return ["schema", "fleet"]

    return choose


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (CheckFailed("ttft_ms p95 is 900, the limit 800"), 1, "ttft_ms p95 is 900, the limit 800"),
        (InputError("no such thing"), 2, "no such thing"),
        (Unavailable("terraform is not here"), 3, "terraform is not here"),
        (OSError(errno.ENOSPC, "No space left on device", "/x/y"), 3, "/x/y: no space left on device (blueprint --debug shows where)"),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), 3, "/x: permission denied (blueprint --debug shows where)"),
        (MemoryError(), 3, "memory is used up (blueprint --debug shows where)"),
        (KeyError("pool"), 70, "a fault of this program, not of yours: KeyError: 'pool' (blueprint --debug shows where)"),
        (RecursionError("maximum\n depth"), 70, "a fault of this program, not of yours: RecursionError: maximum depth (blueprint --debug shows where)"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (typer.Abort(), 130, "interrupted"),
    ],
)  # fmt: skip
def test_every_exception_is_one_line_and_its_own_exit_code(
    error: BaseException, code: int, message: str, make_schema_raise: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(make_schema_raise(error)) == code  # type: ignore[operator]
    output = capsys.readouterr()
    assert (output.out, output.err.splitlines()) == ("", [message])


def test_a_question_that_nobody_can_answer_says_how_to_do_without(
    monkeypatch: pytest.MonkeyPatch, make_schema_raise: object, capsys: pytest.CaptureFixture[str]
) -> None:
    abort = typer.Abort()
    abort.__cause__ = EOFError()
    assert main.run(make_schema_raise(abort)) == 2  # type: ignore[operator]
    assert capsys.readouterr().err == "the question has no answer: standard input is at its end; --yes answers it\n"


@pytest.mark.parametrize("where", ["before", "after", "environment"])
def test_debug_shows_the_traceback(where: str, monkeypatch: pytest.MonkeyPatch, make_schema_raise: object) -> None:
    arguments = make_schema_raise(KeyError("pool"))  # type: ignore[operator]
    monkeypatch.setenv(main.DEBUG, "1" if where == "environment" else "")
    words = {"before": ["--debug", *arguments], "after": [*arguments, "--debug"], "environment": arguments}
    with pytest.raises(KeyError):
        main.run(words[where])


def test_debug_set_to_0_is_off(monkeypatch: pytest.MonkeyPatch, make_schema_raise: object) -> None:
    arguments = make_schema_raise(KeyError("pool"))  # type: ignore[operator]
    monkeypatch.setenv(main.DEBUG, "0")
    assert main.run(arguments) == 70


def test_a_reader_that_has_enough_ends_the_program_quietly() -> None:
    # The reader is gone before the first byte, whatever the scheduler does.
    result = run_shell(
        "blueprint schema fleet | true; echo ${PIPESTATUS[0]}; (sleep 2; blueprint schema fleet) | exec 0<&-"
    )
    assert result.stderr == ""
    result = run_shell("{ sleep 0.5; blueprint schema fleet; echo $? >&2; } | true")
    assert result.stderr == "141\n"


def test_output_that_no_disk_takes_is_said_in_one_line() -> None:
    result = run_shell("blueprint schema fleet > /dev/full")
    assert (result.returncode, result.stderr) == (3, "no space left on device (blueprint --debug shows where)\n")


def test_the_installed_command_answers_and_no_traceback_reaches_a_user() -> None:
    result = run_shell("blueprint check nowhere --fleet nothing.yaml")
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 2
    assert "Traceback" not in result.stderr


def list_completions(words: str) -> list[str]:
    """What bash offers after `words`."""
    result = run_shell(
        "blueprint", _BLUEPRINT_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(len(words.split(" ")) - 1)
    )
    return result.stdout.split()


def test_the_shell_completes_commands_and_choices() -> None:
    assert list_completions("blueprint che") == ["check"]
    assert list_completions("blueprint schema ") == ["fleet", "blueprint", "report"]


def test_the_shell_completes_what_patterns_targets_models_and_types_there_are() -> None:
    assert list_completions("blueprint new x --from aggre") == ["aggregated"]
    assert "local" in list_completions("blueprint check x --target ")
    assert "tiny" in list_completions("blueprint model fit ti")
    assert "p5.48xlarge" in list_completions("blueprint model fit tiny --type p5.")


def test_completion_is_installed_where_bash_finds_it(tmp_path: Path) -> None:
    result = run_shell(
        "blueprint --install-completion bash", HOME=str(tmp_path), _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1"
    )
    assert result.returncode == 0, result.stderr
    (script,) = tmp_path.rglob("*.sh")
    assert str(script) in (tmp_path / ".bashrc").read_text()


def test_what_a_command_does_not_need_is_not_imported() -> None:
    code = (
        "import sys; from llm_serving.cli import main; main.run(['--help']); "
        "heavy = {'cdktf', 'boto3', 'moto', 'locust', 'gevent', 'numpy', 'tokenizers', 'jinja2', 'huggingface_hub'}; "
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.stderr == "[]\n"
