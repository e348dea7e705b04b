from __future__ import annotations

import errno
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from llm_serving.settings.errors import Unavailable
from llm_serving.targets import deployment_dir
from llm_serving.targets.deployment_dir import DeploymentDir


def test_a_deployments_directory_is_private(tmp_path: Path) -> None:
    run = DeploymentDir("mine", tmp_path)
    run.create()
    assert run.data == tmp_path / ".blueprint" / "mine"
    for folder in (run.data, run.logs, run.sockets):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_sockets_are_in_the_directory_if_its_path_is_short(tmp_path: Path) -> None:
    run = DeploymentDir("mine", Path("/home/me"))
    assert run.sockets == run.data / "tmp"


def test_sockets_of_a_deep_directory_are_in_tmp(tmp_path: Path) -> None:
    run = DeploymentDir("mine", tmp_path / ("deep" * 20))
    longest = run.sockets / ("x" * 45)
    assert len(os.fsencode(longest)) <= 107
    assert run.sockets != DeploymentDir("other", run.root).sockets
    run.create()
    assert stat.S_IMODE(run.sockets.stat().st_mode) == 0o700
    run.remove()
    assert not run.sockets.exists()


def test_remove_deletes_one_deployment_and_no_other(tmp_path: Path) -> None:
    mine, other = DeploymentDir("mine", tmp_path), DeploymentDir("other", tmp_path)
    for run in (mine, other):
        run.create()
    mine.remove()
    assert not mine.data.exists()
    assert other.data.is_dir()
    other.remove()
    assert list(tmp_path.iterdir()) == []


def test_saving_ports_creates_nothing_else(tmp_path: Path) -> None:
    run = DeploymentDir("mine", tmp_path)
    assert run.load_ports() == {}
    run.save_ports({"router": 8000})
    assert run.load_ports() == {"router": 8000}
    assert list(run.data.iterdir()) == [run.data / "ports.json"]
    (run.data / "ports.json").write_text("half a fi")
    assert run.load_ports() == {}


def test_a_deployments_secret_is_its_own_and_its_users_alone(tmp_path: Path) -> None:
    run, other = DeploymentDir("mine", tmp_path), DeploymentDir("other", tmp_path)
    assert run.load_secret() == run.load_secret() != other.load_secret()
    assert stat.S_IMODE(run.data.stat().st_mode) == 0o700
    assert stat.S_IMODE((run.data / "secret").stat().st_mode) == 0o600
    first = run.load_secret()
    run.create()
    run.remove()
    assert run.load_secret() != first


def test_a_full_disk_leaves_no_empty_secret_and_what_runs_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(file: Path, *_: object, **__: object) -> None:
        file.open("w").close()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    run, deployment = DeploymentDir("mine", tmp_path), SimpleNamespace(model_dump_json=lambda **_: "{}")
    run.save_ports({"router": 8000})
    run.save_deployment(deployment)  # type: ignore[arg-type]
    saves = (run.load_secret, lambda: run.save_ports({}), lambda: run.save_deployment(deployment))  # type: ignore[arg-type]
    for save in saves:
        with monkeypatch.context() as patched, pytest.raises(OSError, match="No space left"):
            patched.setattr(Path, "write_text", fail)
            save()
    assert len(run.load_secret()) == 32
    assert run.load_ports() == {"router": 8000}
    assert (run.data / "deployment.json").read_text() == "{}\n"


def test_a_second_command_on_the_same_deployment_is_refused(tmp_path: Path) -> None:
    run = DeploymentDir("mine", tmp_path)
    with run.lock():
        with pytest.raises(Unavailable, match=r"deploying or destroying mine\. Fix: wait until it ends\."), run.lock():
            pass
        with DeploymentDir("other", tmp_path).lock():
            pass
    with run.lock():
        pass


def test_a_deployment_of_another_version_loads_as_none(tmp_path: Path) -> None:
    run = DeploymentDir("mine", tmp_path)
    run.create()
    (run.data / "deployment.json").write_text('{"name": "mine", "unknown": 1}')
    assert run.load_deployment() is None


@pytest.fixture
def system_tmp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The system's directory for temporary files, of a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="s", dir="/tmp") as folder:
        monkeypatch.setattr("tempfile.gettempdir", lambda: folder)
        yield Path(folder)


def test_sockets_in_tmp_are_removed_with_their_deployment(tmp_path: Path, system_tmp: Path) -> None:
    root = tmp_path / ("deep" * 30)
    removed, remaining = DeploymentDir("removed", root), DeploymentDir("kept", root)
    for directory in (removed, remaining):
        directory.create()
        assert directory.sockets.is_relative_to(system_tmp)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(removed.sockets / deployment_dir.SUPERVISOR_SOCKET))
        server.listen()
        shutil.rmtree(removed.data)
        DeploymentDir("next", root).create()
        assert removed.sockets.exists(), "a supervisor still listens"
    DeploymentDir("next", root).create()
    assert not removed.sockets.exists()
    assert remaining.sockets.exists()


@pytest.mark.parametrize("level", ["parent", "sockets"])
@pytest.mark.parametrize("planted", ["link", "open", "another user's"])
def test_a_directory_for_sockets_that_others_can_change_is_refused(
    system_tmp: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str, planted: str
) -> None:
    run = DeploymentDir("mine", tmp_path / ("deep" * 20))
    folder = run.sockets if level == "sockets" else run.sockets.parent
    assert folder.is_relative_to(system_tmp)
    run.sockets.parent.mkdir(mode=0o700)
    if folder == run.sockets.parent:
        folder.rmdir()
    if planted == "link":
        (tmp_path / "theirs").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "theirs")
        reason = "is no directory"
    elif planted == "open":
        folder.mkdir()
        folder.chmod(0o1777)
        reason = "has the mode 1777, so that other users can enter it"
    else:
        folder.mkdir(mode=0o700)
        own, lstat = os.getuid(), Path.lstat
        stranger = os.stat_result((0o40700, 0, 0, 2, own + 1, 0, 0, 0, 0, 0))
        monkeypatch.setattr(Path, "lstat", lambda path: stranger if path == folder else lstat(path))
        reason = "belongs to another user"
    with pytest.raises(Unavailable) as error:
        run.create()
    assert str(error.value) == (
        f"{folder} {reason}; a deployment's sockets need a directory of your own. Fix: remove it, or set TMPDIR to a "
        "directory of your own with a short path."
    )
