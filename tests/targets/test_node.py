"""The check of a node: published outputs of the programs that it asks, and stand-ins that print them."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from llm_serving import processes
from llm_serving.catalog import instances
from llm_serving.paths import CHARTS

PROGRAM = CHARTS / "inference" / "files" / "node.py"

SOURCES = {
    "nvidia-smi-580-h200": "an H200, where the whole program ran, 2026-11-26",
    "nvidia-smi-580-h200-busy": "the same, with 20 GiB taken by a program",
    "nvidia-smi-610-b200": "github.com/sgl-project/sglang/issues/27487, first two of eight GPUs",
    "nvidia-smi-535-mig": "github.com/utkuozdemir/nvidia_gpu_exporter/issues/203",
    "fi_info-1.9": "github.com/ofiwg/libfabric/issues/5689",
    "fi_info-p4d": "docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start-nccl.html, 2026-11",
    "fi_info-no-p2p": "github.com/ofiwg/libfabric/issues/11256, libfabric 2.1 with FI_LOG_LEVEL=info",
    "fi_pingpong-efa": "github.com/ComputeCanada/puppet-magic_castle/pull/331, the server",
    "neuron-ls-trn2": "github.com/aws-neuron/aws-neuron-sdk, tools/neuron-sys-tools/neuron-ls.rst at 2086a70",
    "neuron-ls-trn2n": "awsdocs-neuron.readthedocs-hosted.com, v2.28.0, neuron-ls, first four devices",
}
OUTPUTS = {file.stem: file.read_text() for file in Path(__file__).with_name("node_outputs").iterdir()}

# Of Debian's fi_info 1.17 on a computer without EFA, run for this test.
NO_EFA = "fi_getinfo: -61\n"

REPLACE = "replace the instance: `kubectl drain` its node, or drain the container instance, and terminate it"


def _load() -> ModuleType:
    specification = importlib.util.spec_from_file_location("node_check", PROGRAM)
    assert specification and specification.loader
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


node = _load()


def _refuse(judge: Callable[..., object], *arguments: object) -> str:
    with pytest.raises(node.Lack) as lack:
        judge(*arguments)
    return str(lack.value)


def test_every_output_has_its_source() -> None:
    assert set(OUTPUTS) == set(SOURCES)


def test_gpus_are_counted_with_their_memory_driver_and_cuda() -> None:
    driver, cuda, gpus = node.parse_nvidia_smi(OUTPUTS["nvidia-smi-610-b200"])
    assert (driver, cuda, gpus) == ("610.43.02", "13.3", [("NVIDIA B200", 0, 183359, False)] * 2)
    assert node.judge_gpus(OUTPUTS["nvidia-smi-610-b200"], 2, 183359, "13.0.2") == (
        "GPUs: 2 x NVIDIA B200, 183359 MiB; driver 610.43.02 for CUDA up to 13.3, the image has 13.0.2"
    )


def test_a_gpu_that_another_program_uses_is_refused_where_it_passed_before() -> None:
    accelerators = instances.load()["p5e.48xlarge"].accelerators
    assert accelerators
    asked = (1, accelerators.memory_mib, "13.0.2")
    assert node.judge_gpus(OUTPUTS["nvidia-smi-580-h200"], *asked) == (
        "GPUs: 1 x NVIDIA H200, 143771 MiB; driver 580.159.04 for CUDA up to 13.0, the image has 13.0.2"
    )
    assert _refuse(node.judge_gpus, OUTPUTS["nvidia-smi-580-h200-busy"], *asked) == (
        "GPUs: 21007 of 143771 MiB of GPU 0, NVIDIA H200, are taken already. "
        "Fix: end the program that uses it, or replace the instance"
    )


def test_an_image_of_an_earlier_cuda_runs_and_one_of_a_later_major_version_does_not() -> None:
    table = OUTPUTS["nvidia-smi-610-b200"].replace("CUDA UMD Version: 13.3", "CUDA Version: 12.8")
    assert "the image has 12.9.1" in node.judge_gpus(table, 2, 183359, "12.9.1"), "a later minor version does"
    assert _refuse(node.judge_gpus, table, 2, 183359, "13.0.2") == (
        "GPUs: driver 610.43.02 runs CUDA up to 12.8, and the image has 13.0.2. "
        "Fix: use an AMI with a newer NVIDIA driver"
    )


@pytest.mark.parametrize(
    ("changed", "into", "message"),
    [
        ("", "", f"GPUs: nvidia-smi shows 2 of 8. Fix: {REPLACE}"),
        (
            "  0MiB / 183359MiB |      0%",
            "  0MiB / 183359MiB |     ERR!",
            f"GPUs: nvidia-smi shows ERR! for GPU 0, NVIDIA B200. Fix: {REPLACE}",
        ),
        (
            "183359MiB",
            " 81559MiB",
            "GPUs: GPU 0, NVIDIA B200, has 81559 MiB, and its instance type 183359. "
            "Fix: deploy to the instance type that the node is of",
        ),
        (
            "     0MiB / 183359MiB",
            "170000MiB / 183359MiB",
            "GPUs: 170000 of 183359 MiB of GPU 0, NVIDIA B200, are taken already. "
            "Fix: end the program that uses it, or replace the instance",
        ),
        (
            "KMD Version",
            "Version",
            "GPUs: nvidia-smi's table is of an unknown form: "
            f"{OUTPUTS['nvidia-smi-610-b200'].splitlines()[-1]}. Fix: {REPLACE}",
        ),
    ],
)
def test_gpus_that_are_missing_broken_small_or_taken_are_refused(changed: str, into: str, message: str) -> None:
    table = OUTPUTS["nvidia-smi-610-b200"]
    assert changed in table
    count = 2 if changed else 8
    assert _refuse(node.judge_gpus, table.replace(changed, into), count, 183359, "13.0.2") == message


def test_a_gpu_that_mig_splits_is_refused() -> None:
    assert _refuse(node.judge_gpus, OUTPUTS["nvidia-smi-535-mig"], 1, 81920, "") == (
        "GPUs: MIG splits GPU 0, NVIDIA A800-SXM4-80GB. Fix: turn MIG off on the node: nvidia-smi -mig 0"
    )


def test_interfaces_of_efa_are_counted_once_whatever_fabrics_they_offer() -> None:
    assert node.parse_fi_info(OUTPUTS["fi_info-p4d"]) == {f"efa_{number}" for number in range(4)}
    assert node.parse_fi_info(OUTPUTS["fi_info-1.9"]) == {"efa_0"}
    # Since libfabric 2.1 each interface has a second fabric. Source: github.com/ofiwg/libfabric/pull/10735.
    direct = OUTPUTS["fi_info-p4d"].replace("fabric: EFA-fe80::c6e:8fff:fef6:e7ff", "fabric: efa-direct")
    assert node.judge_efa(OUTPUTS["fi_info-p4d"] + direct, 4) == "EFA: 4 interfaces of libfabric's provider efa"


def test_libfabric_without_the_interfaces_is_refused_as_silent_tcp() -> None:
    assert _refuse(node.judge_efa, NO_EFA, 4) == (
        "EFA: libfabric's provider efa offers 0 of 4 interfaces (fi_getinfo: -61): NCCL and NIXL would take TCP. "
        "Fix: replace the instance; if it is new, use an AMI with EFA's driver"
    )
    assert "offers 4 of 32 interfaces" in _refuse(node.judge_efa, OUTPUTS["fi_info-p4d"], 32)


def test_an_interface_that_cannot_register_a_gpus_memory_is_refused() -> None:
    offered = OUTPUTS["fi_info-p4d"]
    fix = "use an AMI whose kernel gives GPUs' memory to EFA's driver, as the EKS and ECS AMIs for NVIDIA do"
    tail = f"every transfer would pass through the host's memory. Fix: {fix}"
    assert node.judge_gpudirect(offered) == "GPUDirect"
    unknown = OUTPUTS["fi_info-no-p2p"].splitlines()[-1].replace("NEURON", "CUDA")
    assert node.judge_gpudirect(f"{unknown}\n{offered}").startswith("GPUDirect not known")
    failed = OUTPUTS["fi_info-no-p2p"] + offered
    assert _refuse(node.judge_gpudirect, failed) == f"GPUDirect: it cannot register a GPU's memory: {tail}"
    assert _refuse(node.judge_gpudirect, NO_EFA) == f"GPUDirect: its provider lacks FI_HMEM: {tail}"


def test_neuron_devices_are_counted_with_their_cores_and_memory() -> None:
    assert node.parse_neuron_ls(OUTPUTS["neuron-ls-trn2"]) == {0: ("8", "96 GB"), 1: ("8", "96 GB")}
    assert node.judge_neuron(OUTPUTS["neuron-ls-trn2n"], 4) == "Neuron: 4 devices with 4 cores and 96 GB"
    assert _refuse(node.judge_neuron, OUTPUTS["neuron-ls-trn2n"], 16) == (
        f"Neuron: neuron-ls shows 4 of 16 devices. Fix: {REPLACE}"
    )


@pytest.mark.parametrize("status", [802, 999])
def test_gpus_that_nvidia_smi_shows_and_cuda_cannot_initialize_are_refused(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr(node.ctypes, "CDLL", lambda _: SimpleNamespace(cuInit=lambda _: status))
    message = {
        802: "CUDA: it does not initialize, error 802: NVSwitch's fabric manager is not ready. "
        "Fix: start nvidia-fabricmanager on the node, or replace the instance",
        999: f"CUDA: it does not initialize, error 999: of NVIDIA's driver. Fix: {REPLACE}",
    }
    assert _refuse(node.check_cuda, 8) == message[status]


def _run(*arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": f"{path}:{os.environ['PATH']}" if path else os.environ["PATH"]}
    command = [sys.executable, str(PROGRAM), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_a_computer_without_devices_says_all_that_it_lacks_and_starts_nothing() -> None:
    asked = ("--gpus", "8", "--gpu-memory", "81920", "--neuron-devices", "16", "--efa", "32", "--gpudirect")
    result = _run(*asked, "--", "echo", "started")
    assert (result.returncode, result.stdout) == (1, "plugins: not checked, for the image has no check-efa\n")
    assert [line.partition(":")[0] for line in result.stderr.splitlines()] == ["GPUs", "CUDA", "Neuron", "EFA"]
    assert all("Fix: " in line for line in result.stderr.splitlines())
    assert "/dev/infiniband has 0 of 32 interfaces: NCCL and NIXL would take TCP. Fix: " in result.stderr


def test_a_rate_over_efa_is_accepted_and_one_that_tcp_reaches_is_refused() -> None:
    output = OUTPUTS["fi_pingpong-efa"].splitlines()
    shown = "transfer: 10 x 4 MiB to and from 10.0.0.7 at {} GB/s over EFA, whose interface has {}"
    assert node.judge_transfer("10.0.0.7", 0, output[-1], 100) == shown.format("2.19", "12.5")
    small = "".join(line for line in output if line.startswith("64k"))
    message = shown.format("0.49", "{}") + ": less than the {} that TCP reaches. Fix: put the nodes into one zone and "
    message += "placement group, or replace the instance"
    assert _refuse(node.judge_transfer, "10.0.0.7", 0, small, 100) == message.format("12.5", "1.25")
    assert _refuse(node.judge_transfer, "10.0.0.7", 0, small, 25) == message.format("3.125", "0.78")


def test_an_exchange_without_an_end_names_the_security_group() -> None:
    assert _refuse(node.judge_transfer, "10.0.0.7", 124, "no end within 120 s", 100) == (
        "transfer: over EFA nothing arrives between this node and 10.0.0.7: NCCL and NIXL would take TCP. "
        "Fix: let the security group of the interfaces pass all traffic from and to itself, and use one zone"
    )


def test_a_node_that_no_other_meets_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "PEER_WAIT_S", 0.05)
    monkeypatch.setattr(node, "find_efa_program", str)
    monkeypatch.setattr(node, "PEERS_PORT", processes.claim_free_ports(1)[0])
    assert node.check_transfer(["127.0.0.1", "no-such-name.invalid"], 100) == (
        "transfer: not measured, for no other replica was being checked within 0.05 s"
    )


def test_an_image_without_the_program_of_the_exchange_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert node.check_transfer(["127.0.0.1"], 100) == "transfer: not measured, for the image has no fi_pingpong"


_PINGPONG = shutil.which("fi_pingpong")
_OVER_TCP = f"""\
#!/bin/sh
[ "$1 $2" = "-p efa" ] && shift 2 && exec {_PINGPONG} -p tcp "$@"
"""
"""libfabric with another provider in EFA's place, as an image or a variable may bring it."""


@pytest.mark.skipif(_PINGPONG is None, reason="no fi_pingpong: apt-get install libfabric-bin")
@pytest.mark.parametrize("over_tcp", [False, True])
def test_two_nodes_without_efa_between_them_are_both_refused(over_tcp: bool, tmp_path: Path) -> None:
    if over_tcp:
        (tmp_path / "fi_pingpong").write_text(_OVER_TCP)
        (tmp_path / "fi_pingpong").chmod(0o755)
    ports = iter(lambda: processes.claim_free_ports(1)[0], 0)
    port = next(port for port in ports if processes.claim(port - 1))  # fi_pingpong's own
    program = tmp_path / "node.py"
    program.write_text(
        PROGRAM.read_text().replace("PEERS_PORT = 47593", f"PEERS_PORT = {port}").replace("_S = 30", "_S = 120")
    )
    asked = ["--peers", "127.0.0.1", "127.0.0.2", "--efa-gbps", "100"]
    command = [sys.executable, str(program), *asked, "--", "echo", "started"]
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    nodes = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    results = [(*process.communicate(timeout=300), process.returncode) for process in nodes]
    assert [(output, status) for output, _, status in results] == [("", 1)] * 2, results
    messages = [message for _, message, _ in results]
    if over_tcp:
        assert (
            messages
            == [
                "transfer: libfabric's provider tcp;ofi_rxm, not efa, carried the messages to 127.0.0.1. "
                "Fix: build and use the fleet's image: images/build vllm\n"
            ]
            * 2
        )
        return
    assert any("ret=-61 (No data available): NCCL and NIXL would take TCP. Fix: " in message for message in messages)
    assert all(message.startswith("transfer: the exchange with 127.0.0.1 fails: ") for message in messages)


def test_the_command_takes_the_checks_place_with_its_own_dashes() -> None:
    result = _run("--", "sh", "-c", 'echo "$@"', "--", "--flag", "--")
    assert (result.returncode, result.stdout, result.stderr) == (0, "--flag --\n", "")


def test_a_plugin_that_the_images_own_check_refuses_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "check-efa"
    program.write_text(
        "#!/bin/sh\necho 'libplugin.so cannot be loaded:' >&2\necho 'libcuda.so.1 => not found' >&2\nexit 1\n"
    )
    program.chmod(0o755)
    result = _run("--efa", "1", path=tmp_path)
    assert result.stderr.splitlines()[-1] == (
        "plugins: libplugin.so cannot be loaded: libcuda.so.1 => not found: NCCL and NIXL would take TCP. "
        "Fix: build the image again: images/build vllm"
    )


def test_a_program_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "TIMEOUT_S", 0.05)
    assert node.run(["sleep", "30"]) == (124, "no end within 0.05 s")
