"""The nodes of a network test join each other; stand-ins on PATH replace ssh-keygen, sshd and mpirun."""

from __future__ import annotations

import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from llm_serving import processes
from llm_serving.fleet import join_nodes

_KEYGEN = """\
#!{python}
import pathlib, sys
key = pathlib.Path(sys.argv[sys.argv.index("-f") + 1])
key.write_text("private")
key.with_suffix(".pub").write_text("ssh-ed25519 public")
"""
_SSHD = """\
#!{python}
import socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("-p") + 1])))
while True:
    server.accept()[0].close()
"""
_MPIRUN = """\
#!{python}
import sys
print("mpirun", *sys.argv[1:])
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins, and free ports."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in (("ssh-keygen", _KEYGEN), ("sshd", _SSHD), ("mpirun", _MPIRUN)):
        file = folder / name
        file.write_text(text.format(python=sys.executable))
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
    join_port, ssh_port = processes.claim_free_ports(2)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setattr(join_nodes, "JOIN_PORT", join_port)
    monkeypatch.setattr(join_nodes, "SSH_PORT", ssh_port)
    monkeypatch.setattr(join_nodes, "SSHD", str(folder / "sshd"))
    monkeypatch.setattr(join_nodes, "OPEN_MPI", str(tmp_path))
    monkeypatch.setattr(join_nodes, "POLL_S", 0.05)
    return tmp_path


def test_two_nodes_join_and_the_first_runs_mpirun_over_both(programs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    deadline = time.monotonic() + 120
    (programs / "leader").mkdir()
    (programs / "follower").mkdir()
    codes: list[int] = []
    follower = threading.Thread(
        target=lambda: codes.append(join_nodes.follow(programs / "follower", "127.0.0.1", deadline))
    )
    follower.start()
    assert join_nodes.lead(programs / "leader", nodes=2, gpus=8, deadline=deadline) == 0
    follower.join(timeout=120)
    assert codes == [0]
    words = capfd.readouterr().out.split()
    assert words[words.index("--host") + 1] == "localhost:8,127.0.0.1:8"
    assert words[words.index("-np") + 1] == "16"
    assert words[-12:] == ["-b", "8", "-e", "16G", "-f", "2", "-g", "1", "-c", "1", "-n", "20"]


def test_only_the_public_key_leaves_the_first_node(programs: Path) -> None:
    (programs / "leader").mkdir()
    key = join_nodes.make_key(programs / "leader")
    gathering = join_nodes.Gathering(key.with_suffix(".pub").read_text())
    server = join_nodes.start_server(gathering, join_nodes.JOIN_PORT)
    try:
        answers = {path: join_nodes.request("127.0.0.1", path) for path in ("/key", "/state", "/id_ed25519", "/")}
    finally:
        server.shutdown()
    assert answers == {"/key": "ssh-ed25519 public", "/state": "running", "/id_ed25519": "running", "/": "running"}
    assert gathering.addresses == ["127.0.0.1"]


def test_nodes_that_do_not_come_are_counted(programs: Path) -> None:
    (programs / "leader").mkdir()
    with pytest.raises(TimeoutError, match="0 of 3 other nodes came in time"):
        join_nodes.lead(programs / "leader", nodes=4, gpus=8, deadline=time.monotonic() + 0.2)


def test_the_program_runs_as_containers_run_it() -> None:
    """By `python3 -c`, with the standard library alone: it ends with an error, and no traceback."""
    source = Path(join_nodes.__file__).read_text()
    environment = {"RANK": "1", "LEADER": "127.0.0.1", "LIMIT_S": "0", "PATH": "/usr/bin:/bin"}
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-c", source], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (result.returncode, result.stderr) == (1, "network test: rank 0 at 127.0.0.1 did not answer in time\n")
