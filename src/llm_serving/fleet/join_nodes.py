"""Join the containers of a network test, and run nccl-tests over them: runs in each container, by itself.

    python3 join_nodes.py

Rank 0 makes an SSH key for this run and hands the public half to the others, which start an SSH server for it; when all
have come, rank 0 runs mpirun and prints its output. The private half never leaves rank 0's container.

Containers run this file as it is, so it imports the standard library only.
"""

import http.client
import http.server
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

JOIN_PORT = 5001
SSH_PORT = 5022
OPEN_MPI = "/opt/amazon/openmpi"
SSHD = "/usr/sbin/sshd"
PROGRAM = "/opt/nccl-tests/build/all_reduce_perf"
SIZES = ("-b", "8", "-e", "16G", "-f", "2", "-g", "1", "-c", "1", "-n", "20")
"""One message of 8 bytes, doubled up to 16 GiB, each sent 20 times and checked; one GPU a process."""

POLL_S = 2.0


class Gathering:
    """What rank 0 knows of the others."""

    def __init__(self, public_key: str) -> None:
        self.public_key = public_key
        self.addresses: list[str] = []
        self.done = threading.Event()

    def add(self, address: str) -> None:
        """Note a node that has asked for the key."""
        if address not in self.addresses:
            self.addresses.append(address)


def make_key(folder: Path) -> Path:
    """Make an SSH key pair and return the private key's path."""
    key = folder / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    return key


def start_server(gathering: Gathering, port: int) -> http.server.ThreadingHTTPServer:
    """Serve the public key and the state of the run to the other nodes."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/key":
                gathering.add(self.client_address[0])
                body = gathering.public_key
            else:
                body = "done" if gathering.done.is_set() else "running"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            """Print nothing: the output is the program's."""

    server = http.server.ThreadingHTTPServer(("", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def wait_for_nodes(gathering: Gathering, count: int, deadline: float) -> None:
    """Wait until `count` nodes have come and their SSH servers answer.

    Raises:
        TimeoutError: some did not.
    """
    while len(gathering.addresses) < count or not all(map(is_listening, gathering.addresses)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(gathering.addresses)} of {count} other nodes came in time")
        time.sleep(POLL_S)


def is_listening(address: str) -> bool:
    """Return whether the SSH server at an address answers."""
    try:
        with socket.create_connection((address, SSH_PORT), timeout=5):
            return True
    except OSError:
        return False


def build_command(addresses: list[str], gpus: int, key: Path) -> list[str]:
    """Return the mpirun command over this node and the others, `gpus` processes each.

    NCCL's data goes over EFA, MPI's own over TCP: its start hangs where it tries libfabric too. In an ECS task ecs-eth0
    reaches the ECS agent only.
    """
    ssh = f"ssh -q -p {SSH_PORT} -i {key} -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
    hosts = ",".join(f"{address}:{gpus}" for address in ["localhost", *addresses])
    unreachable = "lo,docker0,ecs-eth0"
    variables = (
        *("PATH", "LD_LIBRARY_PATH", "FI_PROVIDER=efa", "NCCL_DEBUG=INFO"),
        "NCCL_SOCKET_IFNAME=^docker,lo,veth,ecs",
    )
    return [
        f"{OPEN_MPI}/bin/mpirun",
        *("--prefix", OPEN_MPI, "--allow-run-as-root", "--tag-output", "--bind-to", "none"),
        *("--host", hosts, "-np", str(gpus * (len(addresses) + 1)), "-N", str(gpus)),
        *("--mca", "plm_rsh_agent", ssh, "--mca", "pml", "^cm,ucx", "--mca", "btl", "tcp,self"),
        *("--mca", "btl_tcp_if_exclude", unreachable, "--mca", "oob_tcp_if_exclude", unreachable),
        *(word for name in variables for word in ("-x", name)),
        PROGRAM,
        *SIZES,
    ]


def lead(folder: Path, nodes: int, gpus: int, deadline: float) -> int:
    """Run the test as rank 0, and return mpirun's exit code."""
    key = make_key(folder)
    gathering = Gathering(key.with_suffix(".pub").read_text())
    server = start_server(gathering, JOIN_PORT)
    try:
        wait_for_nodes(gathering, nodes - 1, deadline)
        limit_s = max(1.0, deadline - time.monotonic())
        return subprocess.run(
            build_command(gathering.addresses, gpus, key), stderr=subprocess.STDOUT, timeout=limit_s
        ).returncode
    finally:
        gathering.done.set()
        time.sleep(2 * POLL_S)
        server.shutdown()


def follow(folder: Path, leader: str, deadline: float) -> int:
    """Serve SSH for rank 0's key until rank 0 has finished."""
    keys = folder / "authorized_keys"
    keys.write_text(fetch(leader, "/key", deadline))
    keys.chmod(0o600)
    host_key = folder / "host_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(host_key)], check=True)
    Path("/run/sshd").mkdir(parents=True, exist_ok=True)
    options = (
        f"AuthorizedKeysFile={keys}",
        "PasswordAuthentication=no",
        "PermitRootLogin=prohibit-password",
        "StrictModes=no",
        "UsePAM=no",
    )
    command = [SSHD, "-D", "-e", "-f", "/dev/null", "-h", str(host_key), "-p", str(SSH_PORT)]
    server = subprocess.Popen([*command, *(word for option in options for word in ("-o", option))])
    try:
        while server.poll() is None and time.monotonic() < deadline and fetch_state(leader) == "running":
            time.sleep(POLL_S)
        return server.returncode or 0
    finally:
        server.kill()
        server.wait()


def fetch(leader: str, path: str, deadline: float) -> str:
    """Ask rank 0, until it answers.

    Raises:
        TimeoutError: it did not answer in time.
    """
    while time.monotonic() < deadline:
        try:
            return request(leader, path)
        except OSError:
            time.sleep(POLL_S)
    raise TimeoutError(f"rank 0 at {leader} did not answer in time")


def fetch_state(leader: str) -> str:
    """Return the state of the run; done where rank 0 is gone, running where it is slow to answer."""
    try:
        return request(leader, "/state")
    except TimeoutError:
        return "running"
    except OSError:
        return "done"


def request(leader: str, path: str) -> str:
    """Send one request to rank 0."""
    connection = http.client.HTTPConnection(leader, JOIN_PORT, timeout=10)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    except http.client.HTTPException as error:
        raise OSError(str(error)) from error
    finally:
        connection.close()


def main() -> int:
    """Read RANK, NODES, GPUS, LEADER and LIMIT_S from the environment."""
    folder = Path("/tmp/network-test")
    folder.mkdir(mode=0o700, exist_ok=True)
    deadline = time.monotonic() + float(os.environ["LIMIT_S"])
    try:
        if os.environ["RANK"] == "0":
            return lead(folder, int(os.environ["NODES"]), int(os.environ["GPUS"]), deadline)
        return follow(folder, os.environ["LEADER"], deadline)
    except (TimeoutError, subprocess.TimeoutExpired) as error:
        print(f"network test: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
