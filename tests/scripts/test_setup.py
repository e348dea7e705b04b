"""scripts/setup and scripts/find-python with fakes of Python, pip and uv: interrupted at every step, moved, and without requirements."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

TOOL = r"""#!/bin/bash
# Stands in for python3, .venv's python and uv. What it makes is marked as half-made until it is whole.
self=$(basename "$0") arguments="$*"
step() { # each change of the environment; at the step INTERRUPT_AT, Ctrl-C reaches the whole process group
  echo "$self $arguments" >>"$CALLS"
  if [[ "$(wc -l <"$CALLS")" == "${INTERRUPT_AT:-0}" ]]; then
    kill -INT 0
    sleep 5
  fi
  if [[ -n "${FAIL:-}" && "$arguments" == *"$FAIL"* ]]; then exit "${FAIL_CODE:-1}"; fi
}
case "$self $arguments" in
  *" -c "*) exit 0 ;;
  *--version*) exit 0 ;;
  *" venv "*)
    folder=.venv
    mkdir -p $folder/bin
    cp "$TOOL" $folder/bin/python
    : >$folder/bin/activate
    : >$folder/half-made
    step
    : >$folder/pip ;;
  *"-m pip install"*)
    [[ -e .venv/pip ]] || { echo "No module named pip"; exit 1; }
    echo "exit 1" >.venv/bin/uv
    step
    install -m 755 "$TOOL" .venv/bin/uv.new && mv .venv/bin/uv.new .venv/bin/uv ;;
  *--editable*)
    printf '#!python\n' >.venv/bin/blueprint
    chmod +x .venv/bin/blueprint
    step
    [[ ! -e .venv/half-package ]] || echo broken >.venv/broken ;;
  *"pip install"*)
    # Like the real one, it takes a half-installed package for an installed one.
    [[ ! -e .venv/half-package ]] || touch .venv/broken
    touch .venv/half-package
    step
    rm .venv/half-package
    install -m 755 "$TOOL" .venv/bin/uv.new && mv .venv/bin/uv.new .venv/bin/uv ;;
esac
"""

STEPS = 4
"""Steps of a set-up from nothing: environment, uv, packages, this package."""


@pytest.fixture(params=[False, True], ids=["pip", "uv"])
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A clone with the files that the set-up reads; PATH has the fakes, with or without uv."""
    folder, programs = tmp_path / "clone", tmp_path / "bin"
    (folder / "scripts").mkdir(parents=True)
    (folder / "requirements").mkdir()
    programs.mkdir()
    for name in ("setup", "find-python"):
        shutil.copy(ROOT / "scripts" / name, folder / "scripts")
    for name in ("bootstrap", "cli", "dev"):
        (folder / "requirements" / f"{name}.txt").write_text("")
    (folder / "pyproject.toml").write_text("")
    for name in ("python3", "uv") if request.param else ("python3",):
        (programs / name).write_text(TOOL)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("TOOL", str(programs / "python3"))
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    return folder


def _set_up(clone: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["scripts/setup", *options],
        cwd=clone,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        start_new_session=True,
    )


def _count_calls(clone: Path) -> int:
    calls = clone.parent / "calls"
    return len(calls.read_text().splitlines()) if calls.exists() else 0


@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_the_next_set_up_completes_an_interrupted_one(clone: Path, step: int) -> None:
    interrupted = _set_up(clone, INTERRUPT_AT=str(step))
    assert interrupted.returncode == 130, interrupted.stderr
    assert "Interrupted. Resume: run the same command again" in interrupted.stderr
    assert _count_calls(clone) == step
    finished = _set_up(clone)
    assert finished.returncode == 0, finished.stderr
    assert (clone / ".venv" / "bin" / "blueprint").is_file()
    assert not (clone / ".venv" / "broken").exists(), "half of a package was taken for all of it"
    assert not (clone / ".venv" / "half-package").exists()


def test_a_repeated_set_up_does_nothing(clone: Path) -> None:
    assert _set_up(clone).returncode == 0
    assert _count_calls(clone) == STEPS
    again = _set_up(clone)
    assert (again.returncode, again.stderr) == (0, "")
    assert _count_calls(clone) == STEPS


@pytest.mark.parametrize(
    ("option", "code", "text"), [("--help", 0, "scripts/setup [--dev]"), ("--devel", 2, "--devel: unknown")]
)
def test_help_and_an_unknown_option_set_nothing_up(clone: Path, option: str, code: int, text: str) -> None:
    ended = _set_up(clone, option)
    assert (ended.returncode, _count_calls(clone)) == (code, 0)
    assert text in ended.stdout + ended.stderr


def test_changed_locks_change_the_environment_in_place(clone: Path) -> None:
    _set_up(clone)
    (clone / ".venv" / "mine").touch()
    (clone / "requirements" / "cli.txt").write_text("more==1\n")
    assert _set_up(clone).returncode == 0
    assert (clone / ".venv" / "mine").exists()
    assert _count_calls(clone) == STEPS + 2


@pytest.mark.parametrize("code", [1, 2])
@pytest.mark.parametrize("step", ["bootstrap", "requirements/cli.txt", "--editable"])
def test_a_failed_step_ends_with_3_and_names_the_network_and_its_settings(clone: Path, step: str, code: int) -> None:
    failed = _set_up(clone, FAIL=step, FAIL_CODE=str(code))
    assert failed.returncode == 3
    assert f"✗ setup: the command above failed with exit code {code}. Fix: correct what it names." in failed.stderr
    for setting in ("HTTPS_PROXY", "HTTP_PROXY", "UV_DEFAULT_INDEX", "PIP_INDEX_URL", "SSL_CERT_FILE", "PIP_CERT"):
        assert setting in failed.stderr
    assert _set_up(clone).returncode == 0


def test_a_full_disk_ends_with_3_and_the_required_space(clone: Path) -> None:
    df = clone.parent / "bin" / "df"
    df.write_text('#!/bin/sh\nprintf "Filesystem\\nnone 9 9 1024 99%% /\\n"\n')
    df.chmod(0o755)
    failed = _set_up(clone, FAIL="requirements/cli.txt", FAIL_CODE="2")
    assert failed.returncode == 3
    assert f"✗ setup: the disk is full: 1 MB free under {clone}. Fix: free at least 500 MB" in failed.stderr


def test_a_cache_that_cannot_be_written_ends_with_3_and_names_its_setting(clone: Path) -> None:
    cache = clone.parent / "file"
    cache.touch()
    failed = _set_up(clone, FAIL="requirements/cli.txt", FAIL_CODE="2", UV_CACHE_DIR=str(cache / "uv"))
    assert failed.returncode == 3
    assert f"✗ setup: the package cache {cache}/uv is not writable. Fix: make it writable, or set UV_CACHE_DIR" in (
        failed.stderr
    )


def test_a_moved_clone_fails_with_a_fix_until_set_up_again(clone: Path) -> None:
    _set_up(clone)
    moved = clone.with_name("moved")
    clone.rename(moved)

    def run(script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", script], cwd=moved, capture_output=True, text=True, timeout=60, check=False
        )

    message = "this clone was moved or copied. Fix: run scripts/setup\n"
    called = run(".venv/bin/blueprint list")
    assert (called.returncode, called.stderr) == (3, message)
    assert run("deactivate() { :; }; source .venv/bin/activate").stderr == message
    assert _set_up(moved).returncode == 0
    assert run("deactivate() { :; }; source .venv/bin/activate").stderr == ""
    assert run(".venv/bin/blueprint list").stderr == ""


@pytest.mark.parametrize(
    ("found", "chosen"),
    [
        (["a/python3 plain", "b/python3 optimized"], "b/python3"),
        (["a/python3 plain", "b/python3.12 optimized"], "b/python3.12"),
        (["a/python3 optimized", "b/python3.12 optimized"], "a/python3"),
        (["a/python3 old", "b/python3.12 plain", "b/python3.11 plain"], "b/python3.12"),
        (["a/python3 old"], None),
    ],
)
def test_the_first_python_that_was_built_with_optimizations_is_chosen(
    tmp_path: Path, found: list[str], chosen: str | None
) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    (folders[0] / "bash").symlink_to("/bin/bash")
    for name, build in (python.split() for python in found):
        failing = {"old": "*version_info*", "plain": "*CONFIG_ARGS*", "optimized": "never"}[build]
        (tmp_path / name).write_text(f'#!/bin/bash\ncase "$2" in {failing}) exit 1 ;; esac\n')
        (tmp_path / name).chmod(0o755)
    result = subprocess.run(
        [ROOT / "scripts" / "find-python"],
        env={"PATH": ":".join(map(str, folders))},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stdout) == ((0, f"{tmp_path / chosen}\n") if chosen else (3, ""))
