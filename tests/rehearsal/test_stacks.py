"""The real Terraform with the real AWS provider against the embedded AWS: broken off, begun anew, drifted, destroyed.

The storage stack waits most of a minute for S3's lifecycle rules, in the provider itself: it is applied in a process
of its own while the network stack is tried here.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from llm_serving import processes
from llm_serving.aws.session import AwsSession
from llm_serving.fleet.model import Fleet
from llm_serving.rehearsal import emulator, inventory, override, stacks
from llm_serving.settings.document import Document, load
from llm_serving.settings.errors import CheckFailed, InputError, Unavailable
from llm_serving.terraform import stack_folder
from llm_serving.terraform.runner import Terraform
from tests.infra import deployments

pytestmark = [pytest.mark.terraform, pytest.mark.timeout(600)]

REGION = "us-west-2"
ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_KMS", "TF_AWS_S3_ENDPOINT", "AWS_STS_ENDPOINT")
UNREACHABLE = "http://127.0.0.1:9"
FLEET = """\
name: small
region: us-west-2
zones: [us-west-2a]
orchestrator: ecs
network: {nat: false}
image_cache: {docker_hub: "arn:aws:secretsmanager:us-west-2:123456789012:secret:ecr-pullthroughcache/docker-hub-AbCdEf"}
pools:
  general: {types: g6e.2xlarge, size: 0..8}
"""


@pytest.fixture(scope="module", autouse=True)
def synthesize_here() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        deployments.synthesize_here(patch)
        yield


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Document[Fleet]:
    file = tmp_path_factory.mktemp("fleet") / "fleet.yaml"
    file.write_text(FLEET)
    return load(file, Fleet)


def is_logged(log: Path, text: str) -> Callable[[], bool]:
    return lambda: log.is_file() and text.encode() in log.read_bytes()


Applied = tuple[Mapping[str, Path], Terraform, str]
"""Working folders of stacks, the program that applied them, and the embedded AWS."""


@dataclass
class ApplyProcess:
    """A process that applies the storage stack, whose user has set endpoints that lead nowhere."""

    fleet: Document[Fleet]
    data: Path
    endpoint: str
    process: subprocess.Popen[str]

    @classmethod
    def start(cls, fleet: Document[Fleet], data: Path, endpoint: str) -> ApplyProcess:
        script = Path(__file__).with_name("apply_stacks.py")
        command = [sys.executable, str(script), str(fleet.path), str(data), endpoint, "storage"]
        with (data / "apply.err").open("a") as error_log:
            key = {emulator.ACCESS_KEY_VARIABLE: emulator.get_access_key(endpoint)}
            environment = {**os.environ, **dict.fromkeys(ENDPOINTS, UNREACHABLE), **key}
            process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=error_log, text=True)
        return cls(fleet, data, endpoint, process)

    @property
    def applied(self) -> Applied:
        folders = {"storage": self.data / "stacks/storage"}
        return folders, stack_folder.find_terraform(folders, self.data), self.endpoint

    def wait_for_outputs(self) -> dict[str, Any]:
        """Waits until it is done."""
        output, _ = self.process.communicate(timeout=240)
        assert self.process.returncode == 0, (self.data / "apply.err").read_text()
        return dict(json.loads(output))


@pytest.fixture(scope="module")
def storage_apply(fleet: Document[Fleet], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApplyProcess]:
    data = tmp_path_factory.mktemp("storage")
    with emulator.start(data, bare=True) as endpoint:
        apply_process = ApplyProcess.start(fleet, data, endpoint)
        yield apply_process
        apply_process.process.kill()


@dataclass(frozen=True)
class Network:
    """An applied network stack."""

    data: Path
    endpoint: str
    outputs: dict[str, Any]

    @property
    def applied(self) -> Applied:
        folders = {"network": self.data / "stacks/network"}
        return folders, stack_folder.find_terraform(folders, self.data), self.endpoint


@pytest.fixture(scope="module")
def network(
    fleet: Document[Fleet], storage_apply: ApplyProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Network]:
    """The network stack, applied in the AWS that took the place of one that ended half-way."""
    data = tmp_path_factory.mktemp("network")
    log = data / "stacks/network/apply.log"
    with emulator.start(data, bare=True) as endpoint:
        with (
            pytest.raises(
                Unavailable,
                match=r"the embedded AWS at http://127\.0\.0\.1:\d+ does not answer\. Fix: run the command again",
            ),
            kill_server_when(is_logged(log, "aws_vpc.vpc: Creation complete"), endpoint),
        ):
            apply(fleet, data, endpoint)
        assert (data / "stacks/network/terraform.tfstate").is_file()
    with emulator.start(data, bare=True) as endpoint:
        yield Network(data, endpoint, apply(fleet, data, endpoint))


def apply(fleet: Document[Fleet], data: Path, endpoint: str) -> dict[str, Any]:
    folders = stacks.prepare(fleet, out=data / "out", data=data, stacks=["network"])
    return stacks.apply(fleet, folders, stack_folder.find_terraform(folders, data), endpoint)["network"]


@contextlib.contextmanager
def kill_server_when(condition: Callable[[], bool], endpoint: str) -> Iterator[None]:
    """Kills the server at `endpoint` as soon as something holds, while the block runs."""
    port = endpoint.rpartition(":")[2]
    [server] = [child for child in psutil.Process().children() if port in child.cmdline()]

    def watch() -> None:
        processes.wait_until(condition, "the point to break at", 120, interval_s=0.05)
        server.kill()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        watcher.join(120)


def test_a_new_apply_creates_everything_after_the_emulator_ended(network: Network) -> None:
    kinds = {resource.kind for resource in inventory.list_resources(network.endpoint, REGION, "small")}
    assert {"Vpc", "Subnet", "RouteTable", "VpcEndpoint", "FlowLog", "bucket", "key"} <= kinds
    assert network.outputs["vpc_id"].startswith("vpc-")
    assert list(network.outputs["private_subnet_ids"]) == ["us-west-2a"]


def test_the_applied_stack_equals_the_synthesized_one_byte_for_byte(network: Network) -> None:
    synthesized = network.data / "out/stacks/network/cdk.tf.json"
    assert (network.data / "stacks/network/cdk.tf.json").read_bytes() == synthesized.read_bytes()
    assert sorted(file.name for file in synthesized.parent.iterdir()) == [".terraform.lock.hcl", "cdk.tf.json"]


def test_a_resource_that_drifted_fails_the_rehearsal(fleet: Document[Fleet], network: Network) -> None:
    ec2 = emulator.create_client("ec2", network.endpoint, REGION)
    ec2.modify_vpc_attribute(VpcId=network.outputs["vpc_id"], EnableDnsHostnames={"Value": False})
    with pytest.raises(CheckFailed, match="after the apply a plan must be empty") as error:
        stacks.check_unchanged(fleet, *network.applied)
    assert "  network: aws_vpc.vpc will be updated in-place" in str(error.value)


def test_leftovers_after_a_destroy_fail_the_rehearsal(fleet: Document[Fleet], network: Network) -> None:
    with pytest.raises(CheckFailed, match=r"the destroy left \d+ of the fleet's resources:\n  ") as error:
        stacks.check_nothing_left(fleet, endpoint=network.endpoint)
    assert f"Vpc {network.outputs['vpc_id']}" in str(error.value)


def test_the_network_is_destroyed_without_leftovers(fleet: Document[Fleet], network: Network) -> None:
    stacks.destroy(*network.applied)
    stacks.check_nothing_left(fleet, endpoint=network.endpoint)
    assert not list((network.data / "stacks/network").glob("*.tfstate*"))


def test_an_apply_makes_everything_whatever_endpoints_the_user_has(storage_apply: ApplyProcess) -> None:
    outputs = storage_apply.wait_for_outputs()["storage"]
    assert outputs["model_bucket"] == "small-models-123456789012-us-west-2"
    registry = "123456789012.dkr.ecr.us-west-2.amazonaws.com/small"
    names = storage_apply.fleet.value.storage.repositories
    assert outputs["repositories"] == {name: f"{registry}/{name}" for name in names}
    stacks.check_unchanged(storage_apply.fleet, *storage_apply.applied)


def test_buckets_with_versions_and_deleted_objects_go_without_a_trace(storage_apply: ApplyProcess) -> None:
    s3 = emulator.create_client("s3", storage_apply.endpoint, REGION)
    bucket = "small-models-123456789012-us-west-2"
    for body in (b"1", b"2"):
        s3.put_object(Bucket=bucket, Key="model/weights", Body=body)
    s3.delete_object(Bucket=bucket, Key="model/weights")
    s3.put_object(Bucket=bucket, Key="model/config.json", Body=b"{}")
    stacks.destroy(*storage_apply.applied)
    stacks.check_nothing_left(storage_apply.fleet, endpoint=storage_apply.endpoint)


def test_endpoints_of_the_users_own_are_left_out_for_the_embedded_aws_alone(
    storage_apply: ApplyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ENDPOINTS:
        monkeypatch.setenv(name, UNREACHABLE)
    folders = {"storage": storage_apply.data / "stacks/storage"}
    emptied = {
        aws.is_emulated: [
            name
            for name, value in stack_folder.find_terraform(folders, storage_apply.data, aws).environment.items()
            if name in ENDPOINTS and not value
        ]
        for aws in (emulator.open_session(UNREACHABLE, REGION), AwsSession(REGION))
    }
    assert sorted(emptied[True]) == sorted(ENDPOINTS)
    assert emptied[False] == []


def test_an_unknown_stack_is_refused(fleet: Document[Fleet], tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"stacks: nettwork: this fleet has no such stack\. Fix: write one of network, storage"
    ):
        stacks.prepare(fleet, out=tmp_path / "out", data=tmp_path, stacks=["nettwork"])


EXISTING = "{vpc: vpc-0123456789abcdef0, private_subnets: subnet-0aaaaaaaaaaaaaaaa}"


def start_cli(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [str(Path(sys.executable).with_name("blueprint")), *arguments]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_rehearse_makes_stand_ins_for_an_existing_network_and_cluster(tmp_path: Path) -> None:
    text = FLEET.replace("{nat: false}", EXISTING).replace("orchestrator: ecs", "eks: {cluster: platform}")
    (tmp_path / "fleet.yaml").write_text(text)
    running = start_cli(tmp_path, "rehearse", "network", "eks", "--json")
    out, err = running.communicate(timeout=240)
    assert running.returncode == 0, err
    response = json.loads(out)
    [rehearsal] = response["rehearsals"]
    assert rehearsal["stacks"] == {
        "network": {"resources": 0, "mocked": 0, "applied": 0, "not_held": {}},
        "eks": {"resources": 3, "mocked": 3, "applied": 2, "not_held": {"aws_eks_pod_identity_association": 1}},
    }
    assert rehearsal["outputs"]["eks"]["cluster_name"] == "platform"
    assert rehearsal["outputs"]["network"]["vpc_id"] != "vpc-0123456789abcdef0"
    assert response["emulated"] == [emulator.EMULATION_NOTE]
    assert "terraform -chdir=.blueprint/rehearsal/small/stacks/network apply" in err


def test_every_stack_finds_the_same_stand_in_of_an_existing_network(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET.replace("{nat: false}", EXISTING))
    fleet = load(file, Fleet)
    folders = stacks.prepare(fleet, out=tmp_path / "out", data=tmp_path, stacks=["network", "ecs"])
    with emulator.start(tmp_path, bare=True) as endpoint:
        for folder in folders.values():
            override.write_override(folder, fleet.value, endpoint)
        vpcs = emulator.create_client("ec2", endpoint, REGION).describe_vpcs()["Vpcs"]
    overrides = [json.loads((folder / override.FILE).read_text())["data"] for folder in folders.values()]
    assert overrides[0]["aws_vpc"] == overrides[1]["aws_vpc"] != {"vpc": {"id": "vpc-0123456789abcdef0"}}
    assert overrides[0]["aws_subnet"] == overrides[1]["aws_subnet"]
    assert list(overrides[0]["aws_subnet"]) == ["private-us-west-2a"]
    assert overrides[0]["aws_vpc"]["vpc"]["id"] in [vpc["VpcId"] for vpc in vpcs]


def test_an_interrupted_rehearsal_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text(FLEET)
    running = start_cli(tmp_path, "rehearse", "network")
    log = tmp_path / ".blueprint/rehearsal/small/stacks/network/apply.log"
    processes.wait_until(lambda: log.is_file() and log.stat().st_size > 0, "Terraform's first line", 120)
    children = psutil.Process(running.pid).children(recursive=True)
    assert {"moto", "terraform"} <= {
        word for child in children for word in ("moto", "terraform") if has_argument(child, word)
    }
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=240)
    assert running.returncode == 130
    processes.wait_until(lambda: not any(is_alive(child) for child in children), "the end of every child", 120)


def has_argument(process: psutil.Process, word: str) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return any(word in part for part in process.cmdline())
    return False


def is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False
