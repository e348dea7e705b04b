from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from llm_serving.console import CommandFailed
from llm_serving.settings.errors import Unavailable
from tests import go_programs
from tests.go_programs import Program

TOOL = Program("tool", "example.org/tool/cmd/tool", "v2.1.0", min_version=(2, 0))

PutProgram = Callable[[str, str], Path]


@pytest.fixture
def put_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PutProgram:
    """Put a program on an otherwise empty PATH, with an empty home directory."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    def write(name: str, script: str) -> Path:
        file = folder / name
        file.write_text(f"#!/bin/sh\nPATH={os.defpath}\n{script}\n")
        file.chmod(0o755)
        return file

    return write


def test_the_users_own_program_is_used_if_new_enough(put_program: PutProgram) -> None:
    tool_path = put_program("tool", "echo tool v2.0.3")
    assert go_programs.find_or_build(TOOL) == str(tool_path)


def test_kubebuilder_assets_takes_precedence_over_path(
    put_program: PutProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool_path, assets = put_program("tool", "echo tool v2.0.3"), tmp_path / "assets"
    assets.mkdir()
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    assert go_programs.find_or_build(TOOL) == str(tool_path), "nothing is there yet"
    shutil.copy(tool_path, assets)
    assert go_programs.find_or_build(TOOL) == str(assets / "tool")


GO = 'mkdir -p "$GOBIN"; echo "$@" > "$GOBIN/tool"; chmod +x "$GOBIN/tool"'
"""A fake of Go: its builds contain its arguments."""


@pytest.mark.parametrize("script", ["echo tool v1.9.9", "echo no version here", "exit 1"])
def test_an_old_or_broken_program_is_replaced_by_a_build(put_program: PutProgram, tmp_path: Path, script: str) -> None:
    put_program("tool", script)
    put_program("go", GO)
    built = Path(go_programs.find_or_build(TOOL))
    assert built == tmp_path / "home/.cache/llm-serving-blueprints/bin/tool-v2.1.0/tool"
    assert built.read_text() == "install -gcflags=all=-dwarf=false -ldflags -s -w example.org/tool/cmd/tool@v2.1.0\n"


def test_each_version_is_built_once(put_program: PutProgram) -> None:
    go = put_program("go", GO)
    first = go_programs.find_or_build(TOOL)
    go.write_text("#!/bin/sh\nexit 1\n")
    assert go_programs.find_or_build(TOOL) == first
    with pytest.raises(CommandFailed):
        go_programs.find_or_build(Program("tool", TOOL.package, "v2.2.0"))


def test_a_build_that_ends_half_way_is_begun_again(put_program: PutProgram) -> None:
    put_program("go", f"{GO}; exit 1")
    with pytest.raises(CommandFailed):
        go_programs.find_or_build(TOOL)
    put_program("go", f"{GO}; echo whole >> $GOBIN/tool")
    assert Path(go_programs.find_or_build(TOOL)).read_text().endswith("whole\n")


def test_a_tool_of_a_module_is_built_again_when_its_pins_change(put_program: PutProgram, tmp_path: Path) -> None:
    put_program("go", 'while [ "$1" != -o ]; do shift; done; pwd > "$2"; chmod +x "$2"')
    module = tmp_path / "module"
    module.mkdir()
    (module / "go.mod").write_text("module m\n")
    (module / "go.sum").write_text("")
    tool = replace(TOOL, tool_module=module)
    first = Path(go_programs.find_or_build(tool))
    assert first.read_text() == f"{module}\n"
    (module / "go.sum").write_text("other\n")
    second = Path(go_programs.find_or_build(tool))
    assert second != first and second.parent.name.startswith("tool-v2.1.0-")
    assert go_programs.find_or_build(tool) == str(second)


def test_parallel_callers_wait_for_one_build(put_program: PutProgram, tmp_path: Path) -> None:
    count = tmp_path / "count"
    put_program("go", f"echo build >> {count}; sleep 0.5; {GO}")
    with ThreadPoolExecutor(4) as pool:
        built = set(pool.map(go_programs.find_or_build, [TOOL] * 4, timeout=60))
    assert len(built) == 1
    assert count.read_text() == "build\n"


def test_without_go_the_error_names_what_to_install(put_program: PutProgram) -> None:
    with pytest.raises(Unavailable) as error:
        go_programs.find_or_build(TOOL)
    assert str(error.value) == (
        "tool: not found on PATH. Fix: install it, or Go, which builds example.org/tool/cmd/tool@v2.1.0."
    )


def test_a_cache_that_cannot_be_written_is_named(put_program: PutProgram, tmp_path: Path) -> None:
    put_program("go", GO)
    (tmp_path / "home").touch()
    with pytest.raises(
        Unavailable, match=r"/tool-v2\.1\.0: Not a directory\. Fix: make it writable, or install tool\."
    ):
        go_programs.find_or_build(TOOL)
