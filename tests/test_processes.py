from __future__ import annotations

import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from llm_serving import processes
from llm_serving.settings.errors import Unavailable

ROOT = Path(__file__).resolve().parents[1]


def _has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_stop_ends_a_child_and_its_children(tmp_path: Path) -> None:
    child = processes.spawn(["sh", "-c", f"sleep 300 & echo $! > {tmp_path}/pid; wait"])
    processes.wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "", "the pid", 90)
    grandchild = int((tmp_path / "pid").read_text())
    assert not _has_ended(grandchild)
    processes.stop(child)
    assert child.returncode is not None
    processes.wait_until(lambda: _has_ended(grandchild), "the grandchild's end", 90)


def test_stop_kills_a_child_that_ignores_the_request(tmp_path: Path) -> None:
    child = processes.spawn(["sh", "-c", f"trap '' TERM; touch {tmp_path}/deaf; while :; do sleep 0.1; done"])
    processes.wait_until((tmp_path / "deaf").exists, "the trap", 90)
    processes.stop(child, grace_s=0.5)
    assert child.returncode == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent was killed")
@pytest.mark.parametrize(("ignored", "orphaned"), [("HUP", "SIGTERM"), ("TERM", "SIGKILL")])
def test_a_child_ends_when_its_parent_is_killed(ignored: str, orphaned: str) -> None:
    program = textwrap.dedent(f"""
        import signal, sys, time
        from llm_serving import processes
        child = processes.spawn(["sh", "-c", "trap '' {ignored}; exec sleep 300"], orphan_signal=signal.{orphaned})
        print(child.pid, flush=True)
        time.sleep(300)
    """)
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert not _has_ended(child)
    parent.kill()
    parent.wait()
    processes.wait_until(lambda: _has_ended(child), "the child's end", 90)


def test_a_wait_that_times_out_names_its_subject() -> None:
    with pytest.raises(Unavailable, match="the moon: not ready within 0 s"):
        processes.wait_until(lambda: False, "the moon", timeout_s=0.2)


CLAIMS = "import sys; from llm_serving import processes; print(processes.claim(int(sys.argv[1])), flush=True); input()"


def test_a_claim_on_a_port_holds_until_its_process_ends() -> None:
    (port,) = processes.claim_free_ports(1)
    assert processes.claim(port), "its own again"

    def start_claiming() -> subprocess.Popen[str]:
        words = [sys.executable, "-c", CLAIMS, str(port)]
        return subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    with start_claiming() as process:
        assert process.communicate("\n", timeout=60)[0] == "False\n"
    processes._claims.pop(port).close()
    with start_claiming() as process:
        assert process.stdout
        assert process.stdout.readline() == "True\n"
        assert processes.is_free(port), "nobody listens yet"
        assert not processes.claim(port)
        process.kill()
    assert processes.claim(port)


def test_no_port_is_chosen_twice() -> None:
    assert len({processes.claim_free_ports(1)[0] for _ in range(50)}) == 50


def test_free_ports_are_different_and_can_be_bound() -> None:
    ports = processes.claim_free_ports(5)
    assert len(set(ports)) == 5
    for port in ports:
        socket.create_server(("127.0.0.1", port)).close()  # as servers do, though a connection to it ended just now


def test_sigterm_is_an_interruption_inside_the_block_only() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), processes.handle_interrupts():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_file_that_the_disk_has_no_room_for_stays_as_it_was(tmp_path: Path) -> None:
    file, link = tmp_path / "fleet.yaml", tmp_path / "link"
    file.write_text("name: demo\n")
    file.chmod(0o640)
    link.symlink_to(file)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            processes.write_whole(link, "x" * 200)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (file.read_text(), sorted(tmp_path.iterdir())) == ("name: demo\n", [file, link])
    processes.write_whole(link, "name: other\n")
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode), link.is_symlink()) == ("name: other\n", 0o640, True)
