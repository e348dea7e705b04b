"""Prove that a node has what its engine was deployed for, before the engine starts; refuse it with what it lacks.

    python3 node.py [--gpus N] [--gpu-memory MIB] [--neuron-devices N] [--efa N] [--gpudirect]
        [--peers NAME ... --efa-gbps N] [-- COMMAND ...]

Prints a line for each thing that is there. Exits with 1 after all that is not, each with its reason and what to do:
without EFA's provider NCCL and NIXL take TCP and do not say so, and an engine on a broken GPU fails minutes later.
With --peers, names whose addresses are those of the deployment's nodes, it exchanges some MiB over EFA with another
node that is being checked at the same time.
COMMAND then takes this program's place, where nothing else starts the engine.

Containers run this file as it is: it supports every Python that engines bring and imports the standard library only.
"""

import argparse
import ctypes
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import time

TIMEOUT_S = 120
"""Of one program. Without persistence, each GPU takes seconds to initialize."""

MEMORY_SHARE = 0.9
"""Least share of an instance type's GPU memory that nvidia-smi shows: firmware and ECC keep the rest. A g6's L4 shows
23034 of EC2's 22888 MiB, an H100 81559 of 81920."""

BUSY_SHARE = 0.1
"""Most of a GPU's memory that may be taken before the engine starts. Its driver takes less than 1%."""

DEVICES = pathlib.Path("/dev")

EFA_FOLDER = "/opt/amazon/efa/bin"
"""Where AWS's installer puts libfabric's programs, on no PATH."""

PEERS_PORT = 47593
"""At which nodes that are being checked meet. The port before it is fi_pingpong's own."""

PEER_WAIT_S = 30
"""For another node whose check runs: replicas that serve take no part."""

MESSAGE_BYTES, MESSAGES = 4 * 2**20, 10

TCP_GB_S = 1.25
"""What a TCP connection reaches between two instances, 10 Gbit/s in a cluster placement group and half of it elsewhere.
Source: EC2 User Guide, "Amazon EC2 instance network bandwidth", single-flow traffic, 2026-11. fi_pingpong over EFA had
2.2 GB/s with messages of 1 MiB: github.com/ComputeCanada/puppet-magic_castle/pull/331."""

CUDA_ERRORS = {
    100: ("the driver sees no GPU", "let the device plugin or ECS hand the GPUs to the container"),
    802: ("NVSwitch's fabric manager is not ready", "start nvidia-fabricmanager on the node, or replace the instance"),
    803: ("the driver's libraries are not those of its kernel module", "restart the node, or replace the instance"),
    804: ("the image's CUDA does not run on this driver", "use an AMI with a newer NVIDIA driver"),
}
"""Causes of cuInit's errors, and what to do. Source: CUDA driver API, CUresult, 13.0."""

REPLACE = "replace the instance: `kubectl drain` its node, or drain the container instance, and terminate it"
NO_TCP = "NCCL and NIXL would take TCP"


class Lack(Exception):
    """What the node lacks."""

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(f"{reason}. Fix: {fix}")


def check_gpus(count: int, memory_mib: int) -> str:
    """Return what nvidia-smi shows; without that program, which not every image gets, the device files count."""
    if shutil.which("nvidia-smi") is None:
        devices = list(DEVICES.glob("nvidia[0-9]*"))
        if len(devices) < count:
            fix = "run on an instance with that many, which the device plugin or ECS hands to the container"
            raise Lack(f"GPUs: /dev has {len(devices)} of {count}, and there is no nvidia-smi", fix)
        return f"GPUs: {len(devices)}; without nvidia-smi nothing else is known of them"
    status, text = run(["nvidia-smi"])
    if status:
        raise Lack(f"GPUs: nvidia-smi fails: {find_last_line(text)}", REPLACE)
    return judge_gpus(text, count, memory_mib, os.environ.get("CUDA_VERSION", ""))


def judge_gpus(text: str, count: int, memory_mib: int, image_cuda: str) -> str:
    """Return what nvidia-smi's table shows.

    The CUDA of a driver is the newest that it runs; an image runs with any of the same or an earlier major version.
    Source: NVIDIA, CUDA compatibility, "Minor version compatibility", 2026-11.
    """
    driver, cuda, gpus = parse_nvidia_smi(text)
    if len(gpus) < count:
        raise Lack(f"GPUs: nvidia-smi shows {len(gpus)} of {count}", REPLACE)
    for number, (name, used, total, is_split) in enumerate(gpus):
        if total is None:
            raise Lack(f"GPUs: nvidia-smi shows ERR! for GPU {number}, {name}", REPLACE)
        if is_split:
            raise Lack(f"GPUs: MIG splits GPU {number}, {name}", "turn MIG off on the node: nvidia-smi -mig 0")
        if total < MEMORY_SHARE * memory_mib:
            fix = "deploy to the instance type that the node is of"
            raise Lack(f"GPUs: GPU {number}, {name}, has {total} MiB, and its instance type {memory_mib}", fix)
        if used > BUSY_SHARE * total:
            fix = "end the program that uses it, or replace the instance"
            raise Lack(f"GPUs: {used} of {total} MiB of GPU {number}, {name}, are taken already", fix)
    if image_cuda and int(cuda.split(".")[0]) < int(image_cuda.split(".")[0]):
        fix = "use an AMI with a newer NVIDIA driver"
        raise Lack(f"GPUs: driver {driver} runs CUDA up to {cuda}, and the image has {image_cuda}", fix)
    shown = f"GPUs: {len(gpus)} x {gpus[0][0]}, {gpus[0][2]} MiB; driver {driver} for CUDA up to {cuda}"
    return f"{shown}, the image has {image_cuda}" if image_cuda else shown


def parse_nvidia_smi(text: str) -> tuple:
    """Return the driver's version, the CUDA that it runs, and each GPU's name, used and total MiB, and whether MIG
    splits it; no MiB for a GPU with ERR! in its rows.
    """
    # Since 610 the header says "KMD Version" and "CUDA UMD Version".
    versions = re.search(r"(?:Driver|KMD) Version: *([\d.]+) +CUDA (?:UMD )?Version: *([\d.]+)", text)
    if versions is None:
        raise Lack(f"GPUs: nvidia-smi's table is of an unknown form: {find_last_line(text)}", REPLACE)
    gpus = []
    # Three rows for each GPU: name and bus, memory, MIG.
    name_row = r"^\| +\d+ +(\S.*?) +(?:On|Off|N/A) +\| +[0-9A-Fa-f]+:[0-9A-Fa-f:.]+ .*$"
    for match in re.finditer(rf"(?m){name_row}\n(\|.*)\n(\|.*)$", text):
        memory = re.search(r"(\d+)MiB */ *(\d+)MiB", match.group(2))
        is_known = memory is not None and "ERR!" not in match.group(0)
        used, total = map(int, memory.groups()) if is_known else (None, None)
        gpus.append((match.group(1), used, total, match.group(3).rstrip(" |").endswith("Enabled")))
    return versions.group(1), versions.group(2), gpus


def check_cuda(count: int) -> str:
    """Initialize CUDA: nvidia-smi shows GPUs that it cannot use."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        fix = "run the image with NVIDIA's runtime and NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        raise Lack(f"CUDA: the driver's library is not in the container: {error}", fix) from None
    status, found = library.cuInit(0), ctypes.c_int()
    status = status or library.cuDeviceGetCount(ctypes.byref(found))
    if status:
        cause, fix = CUDA_ERRORS.get(status, ("of NVIDIA's driver", REPLACE))
        raise Lack(f"CUDA: it does not initialize, error {status}: {cause}", fix)
    if found.value < count:
        raise Lack(
            f"CUDA: it sees {found.value} of {count} GPUs", "unset CUDA_VISIBLE_DEVICES, or replace the instance"
        )
    return f"CUDA: initialized with {found.value} GPUs"


def check_neuron(count: int) -> str:
    """Return the Neuron devices that the container has, and what neuron-ls shows of them."""
    devices = list(DEVICES.glob("neuron[0-9]*"))
    if len(devices) < count:
        fix = "run on an instance with that many, which the device plugin or the task's devices hand to the container"
        raise Lack(f"Neuron: /dev has {len(devices)} of {count} devices", fix)
    if shutil.which("neuron-ls") is None:
        return f"Neuron: {len(devices)} devices; without neuron-ls nothing else is known of them"
    status, text = run(["neuron-ls"])
    if status:
        raise Lack(f"Neuron: neuron-ls fails: {find_last_line(text)}", REPLACE)
    return judge_neuron(text, count)


def judge_neuron(text: str, count: int) -> str:
    """Return what neuron-ls's table shows."""
    devices = parse_neuron_ls(text)
    if len(devices) < count:
        raise Lack(f"Neuron: neuron-ls shows {len(devices)} of {count} devices", REPLACE)
    cores, memory = next(iter(devices.values()))
    return f"Neuron: {len(devices)} devices with {cores} cores and {memory}"


def parse_neuron_ls(text: str) -> dict:
    """Return cores and memory of each device by its number."""
    devices = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        memory = [cell for cell in cells if re.fullmatch(r"\d+ GB", cell)]
        if cells[0].isdigit() and memory:
            devices[int(cells[0])] = (cells[1], memory[0])
    return devices


def check_efa(count: int, gpudirect: bool) -> str:
    """Return the interfaces that libfabric's provider offers, and whether it reaches GPUs' memory."""
    devices = list(DEVICES.glob("infiniband/uverbs*"))
    if len(devices) < count:
        fix = "run on an instance with EFA, whose device plugin or task hands them to the container"
        raise Lack(f"EFA: /dev/infiniband has {len(devices)} of {count} interfaces: {NO_TCP}", fix)
    program = find_efa_program("fi_info")
    if program is None:
        raise Lack(
            f"EFA: the image has no libfabric of AWS: {NO_TCP}", "build and use the fleet's image: images/build vllm"
        )
    command = [program, "-p", "efa", "-t", "FI_EP_RDM"]
    _, text = run(command)
    found = judge_efa(text, count)
    if not gpudirect:
        return found
    _, text = run([*command, "-c", "FI_HMEM"], FI_LOG_LEVEL="info", FI_LOG_PROV="efa")
    return f"{found}; {judge_gpudirect(text)}"


def find_efa_program(name: str):
    """Return the path of a program of libfabric, AWS's before others; None if the image has none."""
    return shutil.which(name, path=os.pathsep.join((EFA_FOLDER, os.environ.get("PATH", ""))))


def judge_efa(text: str, count: int) -> str:
    """Return what fi_info lists: each interface, once for every fabric that it offers."""
    interfaces = parse_fi_info(text)
    if len(interfaces) < count:
        fix = "replace the instance; if it is new, use an AMI with EFA's driver"
        reason = f"libfabric's provider efa offers {len(interfaces)} of {count} interfaces ({find_last_line(text)})"
        raise Lack(f"EFA: {reason}: {NO_TCP}", fix)
    return f"EFA: {len(interfaces)} interfaces of libfabric's provider efa"


def parse_fi_info(text: str) -> set:
    """Return the names of EFA's interfaces. A provider on top of it, `efa;ofi_rxd`, has its own lines."""
    domains = re.findall(r"(?m)^ *provider: efa *\n *fabric: .*\n *domain: (\S+)$", text)
    return {re.sub(r"-(rdm|direct|dgrm)$", "", domain) for domain in domains}


def judge_gpudirect(text: str) -> str:
    """Return whether EFA reaches a GPU's memory, by libfabric's log: its provider registers a buffer as it starts.

    Source: ofiwg/libfabric, prov/efa/src/efa_hmem.c at 01bfe20, efa_hmem_info_check_p2p_support_cuda.
    """
    failed = "FI_HMEM_CUDA P2P support is not available" in text
    if failed or not parse_fi_info(text):
        reason = "it cannot register a GPU's memory" if failed else "its provider lacks FI_HMEM"
        fix = "use an AMI whose kernel gives GPUs' memory to EFA's driver, as the EKS and ECS AMIs for NVIDIA do"
        raise Lack(f"GPUDirect: {reason}: every transfer would pass through the host's memory", fix)
    if "FI_HMEM_CUDA is not initialized" in text:
        return "GPUDirect not known, for libfabric has not found CUDA"
    return "GPUDirect"


def check_plugins() -> str:
    """Load NIXL's and NCCL's plugins by the image's own check, now with the node's driver."""
    if shutil.which("check-efa") is None:
        return "plugins: not checked, for the image has no check-efa"
    status, text = run(["check-efa"])
    if status:
        raise Lack(f"plugins: {' '.join(text.split())}: {NO_TCP}", "build the image again: images/build vllm")
    return "plugins: NIXL's and NCCL's link to AWS's libfabric"


def check_transfer(names: list, gbps: float) -> str:
    """Exchange messages with every node that is met within the time; return the rates."""
    if find_efa_program("fi_pingpong") is None:
        return "transfer: not measured, for the image has no fi_pingpong"
    results, door, deadline = [], None, time.monotonic() + PEER_WAIT_S
    while not results and time.monotonic() < deadline:
        addresses = find_addresses(names)
        door = door or open_door(addresses)
        # The higher address calls, so that no two wait for each other; a node without a name calls any.
        called = [address for address in addresses if door is None or address < door.getsockname()[0]]
        results = next(filter(None, (call(address) for address in called)), None) or serve(door)
    if door is not None:
        door.close()
    if not results:
        return f"transfer: not measured, for no other replica was being checked within {PEER_WAIT_S} s"
    return "\n".join(judge_transfer(*result, gbps) for result in results)


def find_addresses(names: list) -> list:
    """Return the addresses of the names, in one order for all nodes; a node has none until it is registered."""
    found = set()
    for name in names:
        try:
            found |= {entry[4][0] for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}
        except OSError:
            continue
    return sorted(found)


def open_door(addresses: list):
    """Listen at the address that is this node's own; None if it is not among them."""
    for address in addresses:
        try:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            door = socket.create_server((address, PEERS_PORT), family=family, backlog=128)
        except OSError:
            continue
        door.settimeout(1)
        return door
    return None


def serve(door) -> list:
    """Return address, status and output of the exchange with each node that calls; waits a second for the next."""
    results = []
    if door is None:
        time.sleep(1)
        return results
    while True:
        try:
            caller, address = door.accept()
            with caller:
                caller.sendall(b"ready")
        except OSError:
            return results
        results.append((address[0], *exchange("-B", str(PEERS_PORT - 1))))


def call(address: str) -> list:
    """Return address, status and output of the exchange with a node, in its turn; none if it does not listen."""
    try:
        with socket.create_connection((address, PEERS_PORT), timeout=2) as line:
            line.settimeout(TIMEOUT_S)
            if line.recv(5) != b"ready":
                return []
            deadline = time.monotonic() + TIMEOUT_S
            while True:
                status, text = exchange("-P", str(PEERS_PORT - 1), address)
                # Its fi_pingpong may not listen yet.
                if "Connection refused" not in text or time.monotonic() > deadline:
                    return [(address, status, text)]
                time.sleep(0.5)
    except OSError:
        return []


def exchange(*words: str) -> tuple:
    """Return status and output of fi_pingpong, which takes no provider but EFA's; -v makes it name the provider."""
    command = [
        find_efa_program("fi_pingpong"),
        "-p",
        "efa",
        "-e",
        "rdm",
        "-v",
        "-I",
        str(MESSAGES),
        "-S",
        str(MESSAGE_BYTES),
        *words,
    ]
    # Without its shortcut through shared memory, for two replicas of one node.
    return run(command, FI_EFA_ENABLE_SHM_TRANSFER="0")


def judge_transfer(address: str, status: int, text: str, gbps: float) -> str:
    """Return the rate of an exchange with a node."""
    provider = re.search(r"prov_name: (\S+)", text)
    row = re.search(r"(?m)^\w+ +\w+ +=?\w+ +\S+ +[\d.]+s +([\d.]+) ", text)
    if status == 124:
        fix = "let the security group of the interfaces pass all traffic from and to itself, and use one zone"
        raise Lack(f"transfer: over EFA nothing arrives between this node and {address}: {NO_TCP}", fix)
    if status or row is None:
        errors = re.findall(r"(?m)^.*(?:ret=-|\[error\]).*$", text)
        reason = f"the exchange with {address} fails: {find_last_line(errors[-1] if errors else text)}"
        raise Lack(f"transfer: {reason}: {NO_TCP}", "see what else this check refuses here and on that node")
    if provider and provider.group(1) != "efa":
        reason = f"libfabric's provider {provider.group(1)}, not efa, carried the messages to {address}"
        raise Lack(f"transfer: {reason}", "build and use the fleet's image: images/build vllm")
    rate, least = float(row.group(1)) / 1000, min(TCP_GB_S, gbps / 8 / 4)
    shown = f"transfer: {MESSAGES} x {MESSAGE_BYTES // 2**20} MiB to and from {address} at {rate:.2f} GB/s over EFA"
    shown += f", whose interface has {gbps / 8:g}" if gbps else ""
    if rate < least:
        fix = "put the nodes into one zone and placement group, or replace the instance"
        raise Lack(f"{shown}: less than the {least:.2f} that TCP reaches", fix)
    return shown


def run(command: list, **environment: str) -> tuple:
    """Return a program's status and what it wrote; a program without an end has status 124."""
    try:
        result = subprocess.run(
            command, env={**os.environ, **environment}, timeout=TIMEOUT_S,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return 124, f"no end within {TIMEOUT_S} s"
    return result.returncode, result.stdout.decode(errors="replace")


def find_last_line(text: str) -> str:
    """Return the last line with words; programs end with their reason."""
    return ([line.strip() for line in text.splitlines() if line.strip()] or ["it wrote nothing"])[-1]


def list_checks(options: argparse.Namespace) -> list:
    """Return the checks of what was asked for."""
    checks = []
    if options.gpus:
        checks += [lambda: check_gpus(options.gpus, options.gpu_memory), lambda: check_cuda(options.gpus)]
    if options.neuron_devices:
        checks.append(lambda: check_neuron(options.neuron_devices))
    if options.efa:
        checks += [lambda: check_efa(options.efa, options.gpudirect), check_plugins]
    if options.peers:
        checks.append(lambda: check_transfer(options.peers, options.efa_gbps))
    return checks


def main() -> None:
    """Run all checks; then exit, or run the command."""
    arguments = sys.argv[1:]
    split = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--gpus", "--gpu-memory", "--neuron-devices", "--efa"):
        parser.add_argument(name, type=int, default=0)
    parser.add_argument("--gpudirect", action="store_true")
    parser.add_argument("--peers", nargs="+", default=[])
    parser.add_argument("--efa-gbps", type=float, default=0)
    lacks = []
    for check in list_checks(parser.parse_args(arguments[:split])):
        try:
            print(check(), flush=True)
        except Lack as lack:
            lacks.append(str(lack))
    if lacks:
        sys.exit("\n".join(lacks))
    if command := arguments[split + 1 :]:
        os.execvp(command[0], command)


if __name__ == "__main__":
    main()
