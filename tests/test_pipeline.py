"""A pipeline without `blueprint deploy`: cdktf synth, Terraform and Helm themselves, as docs/ describes it.

Terraform's AWS is the embedded one, the cluster a real control plane with simulated nodes.
"""

from __future__ import annotations

import functools
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from llm_serving import paths, processes
from llm_serving.cli import main
from llm_serving.fleet.loading import load_fleet
from llm_serving.operations.kube_api import POD
from llm_serving.rehearsal import emulator
from llm_serving.terraform import stack_folder
from tests.control_plane import machines
from tests.control_plane.control_plane import DEPLOYMENT, NODE, ControlPlane

ROOT = Path(__file__).parents[1]
REGION = "us-west-2"
FLEET = f"""\
name: pipe
region: {REGION}
zones: [us-west-2a, us-west-2b]
pools: {{general: {{types: g6e.2xlarge, size: 4}}}}
"""
RELEASES = {"chat": "serving", "talk": "prod"}
"""Names and namespaces, the first of which is the rendered one."""


def run(command: list[str], folder: Path, environment: Mapping[str, str], code: int = 0) -> str:
    result = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == code, f"{shlex.join(command)}\n{result.stdout}{result.stderr}"
    return result.stdout


def test_the_workflow_gives_the_role_that_applies_to_reviewed_code_alone() -> None:
    jobs = yaml.safe_load((ROOT / "docs" / "workflows" / "fleet.yaml").read_text())["jobs"]
    roles = {
        (job.get("environment"), step["with"]["role-to-assume"])
        for job in jobs.values()
        for step in job["steps"]
        if "role-to-assume" in step.get("with", {})
    }
    assert roles == {("production", "${{ env.APPLY_ROLE }}"), (None, "${{ env.PLAN_ROLE }}")}


@pytest.mark.terraform
@pytest.mark.timeout(600)
def test_terraform_itself_applies_a_synthesized_stack_and_finds_what_was_changed_since(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text(FLEET)
    # What `cdktf synth` runs, from the folder that it runs it in.
    app = shlex.split(json.loads((ROOT / "cdktf.json").read_text())["app"])
    settings = {
        "BLUEPRINT_FLEET": str(tmp_path / "fleet.yaml"),
        "BLUEPRINT_STACKS": "network",
        "CDKTF_OUTDIR": str(tmp_path / "cdktf.out"),
    }
    run([sys.executable, *app[1:]], ROOT, settings)
    folder = tmp_path / "cdktf.out" / "stacks" / "network"
    with emulator.start(tmp_path / "aws", bare=True) as endpoint:
        terraform = stack_folder.find_terraform({"network": folder}, tmp_path)
        environment = {**terraform.environment, **emulator.build_client_env(endpoint, REGION)}

        def call(*words: str, code: int = 0) -> str:
            return run([terraform.program, *words], folder, environment, code)

        call("init", "-input=false")
        # One resource, for time: the rehearsals apply whole stacks.
        plan = ("plan", "-input=false", "-no-color", "-detailed-exitcode", "-target=aws_vpc.vpc")
        call(*plan, "-out=plan", code=2)
        call("apply", "-input=false", "plan")
        call(*plan)
        ec2 = emulator.create_client("ec2", endpoint, REGION)
        [vpc] = [entry["VpcId"] for entry in ec2.describe_vpcs()["Vpcs"] if not entry["IsDefault"]]
        ec2.create_tags(Resources=[vpc], Tags=[{"Key": "Name", "Value": "by hand"}])
        assert '"by hand" ->' in call(*plan, code=2)


@pytest.fixture
def cluster(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Nodes for two releases of two replicas, which go after the test with all that it installed."""
    fleet = load_fleet(ROOT / "fleet.yaml").value
    control_plane.api.apply([machines.build_plain("plain"), *machines.build_for_pool(fleet, "general", 4)])
    yield control_plane
    for name, namespace in RELEASES.items():
        words = [control_plane.helm, "uninstall", name, f"--namespace={namespace}", "--ignore-not-found"]
        # With its pods, which nobody would end once their nodes are gone.
        run([*words, "--cascade=foreground", "--wait"], ROOT, control_plane.environment)
    control_plane.api.delete_all(NODE, timeout_s=60)


def is_whole(cluster: ControlPlane, name: str) -> bool:
    """Whether both engines of a release and its router run."""
    labels = f"app.kubernetes.io/instance={name},inference/kind"
    pods = cluster.api.list_objects(POD, RELEASES[name], labels=labels)
    running = [pod["metadata"]["labels"]["inference/kind"] for pod in pods if pod["status"]["phase"] == "Running"]
    return sorted(running) == ["engine", "engine", "router"]


def read_image(cluster: ControlPlane, name: str) -> str:
    deployment = cluster.read(DEPLOYMENT, f"{name}-worker", RELEASES[name])
    return str(deployment["spec"]["template"]["spec"]["containers"][0]["image"])


@pytest.mark.timeout(600, func_only=True)  # the fixture may wait for a build
def test_helm_itself_installs_a_rendered_deployment_twice_upgrades_and_rolls_back(
    cluster: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(paths.PATTERNS / "aggregated", tmp_path / "chat")
    shutil.copy(ROOT / "fleet.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert main.run(["render", "chat", "--target", "eks"]) == 0
    values = tmp_path / "rendered" / "chat" / "eks" / "eks.yaml"
    space = (values.parent / "namespace.yaml").read_text()
    for namespace in RELEASES.values():
        cluster.api.apply(yaml.safe_load_all(space.replace("serving", namespace)))

    def helm(command: str, name: str, *words: str) -> str:
        options = (f"--namespace={RELEASES[name]}", *words)
        return run([cluster.helm, *command.split(), name, *options], tmp_path, cluster.environment)

    chart = str(paths.CHARTS / "inference")
    for name in RELEASES:
        helm("install", name, chart, f"--values={values}", "--wait", "--timeout=200s")
        # Helm does not wait for replicas that may be unavailable during a rollout.
        processes.wait_until(functools.partial(is_whole, cluster, name), f"the pods of {name}", 120)
    image = yaml.safe_load(values.read_text())["roles"]["worker"]["image"]
    other = "vllm/vllm-openai:v0.32.1"
    helm("upgrade", "talk", chart, f"--values={values}", f"--set=roles.worker.image={other}")
    assert (read_image(cluster, "chat"), read_image(cluster, "talk")) == (image, other), "of one release alone"
    assert helm("get manifest", "talk").count(f"image: {other}") > 0
    helm("rollback", "talk", "1")
    assert read_image(cluster, "talk") == image
