"""Programs of engines other than the default one: unpacked, taken from PATH, or a clear line where neither is."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from llm_serving import locked_env
from llm_serving.settings.errors import Unavailable
from llm_serving.targets.local import engine_env, engine_setups
from llm_serving.targets.local.engine_env import EngineEnv

UV = """#!/bin/sh
for last; do :; done
[ "$1" = venv ] && mkdir -p "$last/bin" && ln -s /bin/true "$last/bin/python"
echo "$@" >> "$CALLS"
"""
UNPACKS = """\
import pathlib, sys
folder = pathlib.Path(sys.argv[1])
folder.mkdir()
(folder / "llama-server").write_text("unpacked")
"""
FAILS = "import sys; sys.exit('llama.cpp: no mirror of Debian serves x. Fix: set DEBIAN_MIRROR to the URL of one that does.')"


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineEnv:
    """llama.cpp's in an empty clone, with a fake of uv and no program on PATH."""
    row = engine_setups.engines.load_engines()["llama.cpp"].local
    assert row
    for name in (*row.locks, row.packages):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / row.locks[0]).write_text("vllm-router==0.1.17\n")
    (tmp_path / row.packages).with_name("packages.json").write_text("{}")
    (tmp_path / row.packages).write_text(UNPACKS)
    uv = tmp_path / "uv"
    uv.write_text(UV)
    uv.chmod(0o755)
    monkeypatch.setattr(locked_env, "find_uv", lambda: str(uv))
    monkeypatch.setattr(engine_env, "ROOT", tmp_path)
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    return engine_setups.find("llama.cpp")


def _get_script(root: Path) -> Path:
    return root / "images" / "llama-cpp" / "fetch_packages.py"


def _find_program(folder: Path) -> Path:
    """What the installed program starts, as one that shares its cores, behind the launcher that lets requests finish."""
    words = shlex.split((folder / "llama-server").read_text().splitlines()[1])
    assert words[:4] == ["exec", "env", "OMP_WAIT_POLICY=passive", str(folder / "python")]
    assert words[4].endswith("/images/llama-cpp/drain.py") and words[6] == "$@"
    return Path(words[5])


def test_packages_are_unpacked_once_beside_the_router_of_a_lock_with_hashes(setup: EngineEnv, tmp_path: Path) -> None:
    assert not setup.is_ready()
    folder = setup.ensure()
    assert _find_program(folder).read_text() == "unpacked"
    assert setup.is_ready()
    calls = (tmp_path / "calls").read_text()
    assert "--require-hashes -r " in calls
    setup.ensure()
    assert (tmp_path / "calls").read_text() == calls
    _get_script(tmp_path).with_name("packages.json").write_text('{"other": "pins"}')
    assert not setup.is_ready()


def test_the_users_own_program_serves_where_no_package_is_to_be_had(
    setup: EngineEnv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _get_script(tmp_path).write_text(FAILS)
    own = tmp_path / "own" / "llama-server"
    own.parent.mkdir()
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    monkeypatch.setenv("PATH", f"{own.parent}{os.pathsep}/bin:/usr/bin")
    assert _find_program(setup.ensure()) == own


def test_neither_a_package_nor_a_program_is_one_clear_line(setup: EngineEnv, tmp_path: Path) -> None:
    _get_script(tmp_path).write_text(FAILS)
    with pytest.raises(Unavailable) as error:
        setup.ensure()
    assert str(error.value) == (
        "llama-server is neither to be had as a package nor on PATH. llama.cpp: no mirror of Debian serves x. "
        "Fix: set DEBIAN_MIRROR to the URL of one that does, or install llama-server yourself."
    )
    assert not setup.is_ready()


def test_the_default_engine_keeps_its_environment_and_a_kind_without_engines_asks_for_it() -> None:
    assert engine_setups.find("vllm").executables == engine_setups.find().executables
    assert engine_setups.find().executables.parent.name == engine_env.FOLDER


def test_a_program_that_is_a_script_here_is_installed_beside_the_packages_of_all_locks(
    setup: EngineEnv, tmp_path: Path
) -> None:
    assert setup.executables.name == "bin"
    row = engine_setups.engines.load_engines()["diffusion"].local
    assert row
    for lock in row.locks:
        (tmp_path / lock).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / lock).write_text("a==1\n")
    drawing = engine_setups.find("diffusion")
    words = shlex.split((drawing.ensure() / "diffusion-server").read_text().splitlines()[1])
    assert words[-2:] == [str(tmp_path / "images/diffusion/diffusion_server.py"), "$@"]
    calls = (tmp_path / "calls").read_text()
    assert all(f"-r {tmp_path / lock}" in calls for lock in row.locks)
    assert drawing.is_ready()
    (tmp_path / row.locks[1]).write_text("a==2\n")
    assert not drawing.is_ready()
