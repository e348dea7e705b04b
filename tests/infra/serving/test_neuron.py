"""A deployment on ECS with Neuron devices: a machine for each task, and weights that are copied to it beforehand."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra import stack_rules
from llm_serving.fleet import loading
from tests.infra import deployments
from tests.infra import workspace as workspaces
from tests.infra.deployments import Stack
from tests.infra.serving.conftest import write_blueprint
from tests.infra.serving.test_stack import filter_by_type, find_write_access, parse_containers

TEST_FOLDER = Path(__file__).parent

# In a region that offers the type.
FLEET = """\
name: neuron
region: us-east-2
zones: [us-east-2a, us-east-2b]
orchestrator: ecs
pools:
  trainium: {types: trn2.48xlarge, zones: us-east-2b, size: 0..2}
"""
BLUEPRINT = """\
pattern: aggregated
model: meta-llama/Llama-3.3-70B-Instruct
context: 16384
roles: {worker: {pool: trainium, accelerators: 64, data: 4}}
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("fleet") / "fleet.yaml"
    file.write_text(FLEET)
    return file


@pytest.fixture(scope="module")
def synth_folder(fleet: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with stacks/serving-neuron/cdk.tf.json."""
    folder, out = tmp_path_factory.mktemp("serving"), tmp_path_factory.mktemp("synthesized")
    manifest = deployments.render(folder, write_blueprint(folder, "neuron", BLUEPRINT), fleet, "ecs")
    return deployments.synthesize(out, fleet, {"serving-neuron": manifest})


@pytest.fixture(scope="module")
def stack(synth_folder: Path) -> Stack:
    return deployments.read_stack(synth_folder, "serving-neuron")


def test_the_stack_follows_the_rules_of_all_stacks(stack: Stack, fleet: Path) -> None:
    assert list(stack_rules.find_violations(loading.load_fleet(fleet).value, {"neuron": stack})) == []


def test_weights_are_copied_to_a_volume_that_the_engine_reads(stack: Stack) -> None:
    by_name = parse_containers(stack, "worker")
    engine, copier = by_name["worker"], by_name["fetch"]
    assert engine["dependsOn"] == [{"containerName": "fetch", "condition": "SUCCESS"}]
    assert copier["essential"] is False, "it ends, and the task continues"
    assert engine["entryPoint"] == ["python3"], "the check of the node, which then becomes the engine"
    program = engine["command"].index("--") + 1
    assert engine["command"][2 : program - 1][:1] == ["--neuron-devices"]
    assert engine["command"][program + 2] == copier["command"][-1]
    [engine_mount], [copier_mount] = engine["mountPoints"], copier["mountPoints"]
    assert (engine_mount["sourceVolume"], engine_mount["readOnly"]) == (copier_mount["sourceVolume"], True)
    assert copier["command"][-1].startswith(f"{engine_mount['containerPath']}/")
    [task] = [
        definition for definition in filter_by_type(stack, "aws_ecs_task_definition").values() if "volume" in definition
    ]
    assert [volume["name"] for volume in task["volume"]] == [engine_mount["sourceVolume"]]
    # 141 GB at 100 MB/s; the agent alone would give up after three minutes.
    assert copier["startTimeout"] > 1411


def test_copy_containers_may_only_read(stack: Stack) -> None:
    assert list(find_write_access(stack)) == []


def test_a_task_sees_all_of_its_machines_devices_and_no_gpu(stack: Stack) -> None:
    engine = parse_containers(stack, "worker")["worker"]
    assert "resourceRequirements" not in engine
    assert [device["hostPath"] for device in engine["linuxParameters"]["devices"]] == [
        f"/dev/neuron{n}" for n in range(16)
    ]
    assert engine["linuxParameters"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}


def test_devices_of_an_instance_are_not_efa_peers(stack: Stack) -> None:
    descriptions = {
        rule["description"] for rule in filter_by_type(stack, "aws_vpc_security_group_ingress_rule").values()
    }
    assert "Requests" in descriptions
    assert "Caches and ranks of one model" not in descriptions


@pytest.mark.terraform
def test_terraform_accepts_every_resource(synth_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    workspace = workspaces.create(
        tmp_path_factory.mktemp("terraform"),
        synth_folder,
        tests=[TEST_FOLDER / "neuron.tftest.hcl"],
        stack="stacks/serving-neuron",
        data=tmp_path_factory.mktemp("data"),
    )
    result = workspace.test()
    assert result.returncode == 0, result.stdout + result.stderr
    assert "1 passed, 0 failed" in result.stdout
