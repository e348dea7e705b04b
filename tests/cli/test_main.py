"""The command line: one line and one exit code for each error, never a traceback; help in groups; lazy imports."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from llm_serving import program
from llm_serving.cli import main
from llm_serving.cli.commands import schema, signals
from llm_serving.console import CommandFailed
from llm_serving.settings.errors import CheckFailed, InputError, Unavailable

BLUEPRINT = Path(sys.executable).with_name("blueprint")
ROOT = Path(__file__).parents[2]


def run_shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a line in bash with `blueprint` on the PATH."""
    return subprocess.run(
        ["bash", "-c", line],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{BLUEPRINT.parent}:{os.environ['PATH']}", **environment},
        capture_output=True,
        text=True,
        timeout=240,
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
        (["deploy", "x", "--port", "http"], "blueprint deploy: invalid value for '--port': \"http\" should be a valid integer, unable to parse string as an integer (blueprint deploy --help shows more)"),
        (["deploy", "x", "--port", "99999"], "blueprint deploy: invalid value for '--port': \"99999\" should be less than or equal to 65535 (blueprint deploy --help shows more)"),
        (["model", "x"], "blueprint model: no such command 'x'. (blueprint model --help shows more)"),
    ],
)  # fmt: skip
def test_an_invalid_command_line_prints_one_line_and_exits_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.splitlines() == [message]


def test_no_arguments_print_the_help_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([]) == 2
    output = capsys.readouterr()
    assert "Usage: blueprint" in output.out
    assert "check" in output.out
    assert output.err == ""


def test_help_exits_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["check", "--help"]) == 0
    assert "--fleet" in capsys.readouterr().out


@pytest.fixture
def make_schema_raise(monkeypatch: pytest.MonkeyPatch) -> object:
    """A function that makes `blueprint schema fleet` raise a given exception."""
    monkeypatch.delenv(program.DEBUG, raising=False)

    def set_error(error: BaseException) -> list[str]:
        def raise_error(*_: object) -> str:
            raise error

        monkeypatch.setattr(schema, "render_schema", raise_error)
        return ["schema", "fleet"]

    return set_error


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (CheckFailed("ttft_ms p95 is 900, the limit 800"), 1, "ttft_ms p95 is 900, the limit 800"),
        (InputError("no such thing"), 2, "no such thing"),
        (Unavailable("terraform is not here"), 3, "terraform is not here"),
        (OSError(errno.ENOSPC, "No space left on device", "/x/y"), 3, "/x/y: no space left on device. Fix: make room on that disk."),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), 3, "/x: permission denied. Fix: get the rights for it, or use another folder."),
        (FileExistsError(errno.EEXIST, "File exists", "/x"), 3, "/x: file exists. Fix: rename what is there, or use another name."),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory", "/x/y"), 3, "/x/y: not a directory. Fix: rename the file that is there in place of a directory."),
        (IsADirectoryError(errno.EISDIR, "Is a directory", "/x"), 3, "/x: is a directory. Fix: rename the directory that is there in place of a file."),
        (shutil.Error([("/A", "/x", "[Errno 28] No space left on device: '/A' -> '/x'"), ("/B", "/y", "z")]), 3, "/x: no space left on device. Fix: make room on that disk."),
        (shutil.Error([("/A", "/x", "[Errno 2] No such file or directory: '/A'")]), 3, "[Errno 2] No such file or directory: '/A' (BLUEPRINT_DEBUG=1 shows the traceback)"),
        (OSError(errno.EIO, "Input/output error", "/x"), 3, "/x: input/output error (BLUEPRINT_DEBUG=1 shows the traceback)"),
        (MemoryError(), 3, "out of memory (BLUEPRINT_DEBUG=1 shows the traceback)"),
        (KeyError("pool"), 70, "Internal error: KeyError: 'pool' (BLUEPRINT_DEBUG=1 shows the traceback)"),
        (RecursionError("maximum\n depth"), 70, "Internal error: RecursionError: maximum depth (BLUEPRINT_DEBUG=1 shows the traceback)"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (typer.Abort(), 130, "interrupted"),
    ],
)  # fmt: skip
def test_every_exception_prints_one_line_and_has_its_exit_code(
    error: BaseException, code: int, message: str, make_schema_raise: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(make_schema_raise(error)) == code  # type: ignore[operator]
    output = capsys.readouterr()
    assert (output.out, output.err.splitlines()) == ("", [message])


def test_a_confirmation_without_a_terminal_names_yes(
    monkeypatch: pytest.MonkeyPatch, make_schema_raise: object, capsys: pytest.CaptureFixture[str]
) -> None:
    abort = typer.Abort()
    abort.__cause__ = EOFError()
    assert main.run(make_schema_raise(abort)) == 2  # type: ignore[operator]
    assert capsys.readouterr().err == "No terminal to confirm on; pass --yes\n"


def test_json_has_what_the_system_refuses(
    monkeypatch: pytest.MonkeyPatch, make_schema_raise: object, capsys: pytest.CaptureFixture[str]
) -> None:
    make_schema_raise(OSError(errno.EROFS, "Read-only file system", "/x"))  # type: ignore[operator]
    monkeypatch.setattr(signals, "_build_row", schema.render_schema)
    assert main.run(["signals", "--json"]) == 3
    message = "/x: read-only file system. Fix: use a folder on a disk that can be written."
    output = capsys.readouterr()
    assert json.loads(output.out) == {"ok": False, "mistakes": [{"message": message}]}
    assert output.err == f"{message}\n"


def test_json_has_which_program_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_schema_raise: object, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").write_text("Error: no valid credential sources found\n")
    make_schema_raise(CommandFailed(["terraform", "plan"], tmp_path / "log", "exit code 1"))  # type: ignore[operator]
    monkeypatch.setattr(signals, "_build_row", schema.render_schema)
    assert main.run(["signals", "--json"]) == 1
    (mistake,) = json.loads(capsys.readouterr().out)["mistakes"]
    assert mistake["message"].startswith("terraform plan\n  failed: exit code 1; last lines of ")
    assert mistake["message"].endswith("    Error: no valid credential sources found")


def test_json_has_what_is_wrong_with_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["check", "--json"]) == 2
    output = capsys.readouterr()
    message = "blueprint check: missing argument 'DIR'. (blueprint check --help shows more)"
    assert json.loads(output.out) == {"ok": False, "mistakes": [{"message": message}]}
    assert output.err == f"{message}\n"


@pytest.mark.parametrize("position", ["before", "after", "environment"])
def test_debug_shows_the_traceback(position: str, monkeypatch: pytest.MonkeyPatch, make_schema_raise: object) -> None:
    arguments = make_schema_raise(KeyError("pool"))  # type: ignore[operator]
    monkeypatch.setenv(program.DEBUG, "1" if position == "environment" else "")
    words = {"before": ["--debug", *arguments], "after": [*arguments, "--debug"], "environment": arguments}
    with pytest.raises(KeyError):
        main.run(words[position])


def test_debug_0_is_off(monkeypatch: pytest.MonkeyPatch, make_schema_raise: object) -> None:
    arguments = make_schema_raise(KeyError("pool"))  # type: ignore[operator]
    monkeypatch.setenv(program.DEBUG, "0")
    assert main.run(arguments) == 70


@pytest.mark.parametrize("arguments", [("schema", "fleet"), ("--help",), ("check", "--help")])
def test_a_closed_pipe_ends_the_program_without_a_message(arguments: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)  # before the first byte
    with os.fdopen(writer, "wb") as closed_pipe:
        result = subprocess.run([BLUEPRINT, *arguments], stdout=closed_pipe, stderr=subprocess.PIPE, timeout=240)
    assert (result.returncode, result.stderr) == (program.PIPE_CLOSED, b"")


def test_a_closed_standard_output_is_no_error() -> None:
    without_output = ["sh", "-c", '"$0" schema fleet >&-', BLUEPRINT]
    result = subprocess.run(without_output, stderr=subprocess.PIPE, timeout=240, check=False)
    assert (result.returncode, result.stderr) == (0, b"")


def test_a_full_disk_exits_3_with_one_line() -> None:
    result = run_shell("blueprint schema fleet > /dev/full")
    assert (result.returncode, result.stderr) == (
        3,
        "no space left on device. Fix: make room on that disk.\n",
    )


def test_the_installed_command_never_prints_a_traceback() -> None:
    result = run_shell("blueprint check nowhere --fleet nothing.yaml")
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 2
    assert "Traceback" not in result.stderr


def list_completions(words: str) -> list[str]:
    """List the completions that bash offers after `words`."""
    result = run_shell(
        "blueprint", _BLUEPRINT_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(len(words.split(" ")) - 1)
    )
    return result.stdout.split()


def test_the_shell_completes_commands_and_choices() -> None:
    assert list_completions("blueprint che") == ["check"]
    assert list_completions("blueprint schema ") == ["fleet", "blueprint", "report"]


def test_the_shell_completes_patterns_targets_models_and_instance_types() -> None:
    assert list_completions("blueprint new x --from aggre") == ["aggregated"]
    assert "local" in list_completions("blueprint check x --target ")
    assert "tiny" in list_completions("blueprint model fit ti")
    assert "p5.48xlarge" in list_completions("blueprint model fit tiny --type p5.")


def test_completion_is_installed_for_bash(tmp_path: Path) -> None:
    result = run_shell(
        "blueprint --install-completion bash", HOME=str(tmp_path), _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1"
    )
    assert result.returncode == 0, result.stderr
    (script,) = tmp_path.rglob("*.sh")
    assert str(script) in (tmp_path / ".bashrc").read_text()


def test_help_imports_no_heavy_module() -> None:
    code = (
        "import sys; from llm_serving.cli import main; main.run(['--help']); "
        "heavy = {'cdktf', 'boto3', 'moto', 'locust', 'gevent', 'numpy', 'tokenizers', 'jinja2', 'huggingface_hub', 'pydantic', 'psutil', 'yaml'}; "
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert result.stderr == "[]\n"


@pytest.mark.parametrize("entry", main.list_commands(), ids=lambda entry: entry.name)
def test_every_command_loads_and_its_help_begins_with_its_summary(entry: main.CommandEntry) -> None:
    command = main.load_command(entry)
    assert command.name == entry.name
    assert command.help.split("\n\n")[0] == entry.summary


@pytest.mark.parametrize("entry", main.list_commands(), ids=lambda entry: entry.name)
def test_every_summary_is_one_active_sentence_that_fits_its_line(entry: main.CommandEntry) -> None:
    assert re.fullmatch(r"[A-Z][^.]*(?:\.[^ .]+)?[^.]*\.", entry.summary)
    assert len(entry.summary) <= 64


def test_the_help_lists_the_commands_in_groups_and_documents_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--help"]) == 0
    output = capsys.readouterr().out
    positions = [output.index(f"─ {panel} ─") for panel in ("Blueprints", "Models", "Fleet", "AWS", "Tools")]
    assert positions == sorted(positions)
    assert "twin" not in output
    codes = "0 success; 1 check failed; 2 invalid input; 3 environment problem; 70 internal error."
    assert codes in " ".join(output.split())


@pytest.mark.parametrize("arguments", [[entry.name] for entry in main.list_commands()], ids=lambda words: words[0])
def test_every_commands_help_fits_80_columns(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    widths = {}
    for columns in ("80", "120"):
        monkeypatch.setenv("COLUMNS", columns)
        assert main.run([*arguments, "--help"]) == 0
        widths[columns] = max(map(len, capsys.readouterr().out.splitlines()))
    assert widths["80"] <= 80
    assert widths["120"] > 80, "it heeds the width"


@pytest.mark.parametrize("line", ["blueprint --help", "blueprint model fit --help"])
def test_a_help_below_80_columns_is_that_of_80_for_the_terminal_to_wrap(line: str) -> None:
    helps = [run_shell(line, COLUMNS=columns).stdout for columns in ("40", "80", "100")]
    assert helps[0] == helps[1] != helps[2]


def test_standard_output_in_ascii_shows_other_characters_by_their_codes() -> None:
    result = run_shell("blueprint matrix", PYTHONIOENCODING="ascii")
    assert (result.returncode, result.stderr) == (0, "")
    assert r"yes\u2020: rendered, not run" in " ".join(result.stdout.split())


def test_an_unknown_target_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["check", "blueprints/aggregated", "--target", "mars"]) == 2
    assert capsys.readouterr().err == '--target: "mars": there is no such target. Fix: use ecs or eks or local.\n'


def test_a_command_imports_its_modules_at_the_top() -> None:
    """Only completions, which must be fast and share a module, and the entry before all import where they need it."""
    inner_imports = [
        f"{file.name}:{number}"
        for folder in ("cli", "options")
        for file in sorted((ROOT / "src/llm_serving" / folder).rglob("*.py"))
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if re.match(r"\s+(?:from \S+ )?import ", line)
    ]
    assert sorted(position.partition(":")[0] for position in inner_imports) == ["completions.py"] * 2 + ["entry.py"]
