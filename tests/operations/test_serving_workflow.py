"""The part of the AWS workflow that needs instances, with recording programs in place of a cluster.

It proves the order, what is passed on, and what is not done twice; nothing of helm or the cluster.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llm_serving import console
from llm_serving.aws.session import AwsSession
from llm_serving.fleet.model import Fleet
from llm_serving.operations import image_pins
from llm_serving.operations.checkpoints import Checkpoints
from llm_serving.operations.context import FleetContext
from llm_serving.settings.document import load
from llm_serving.terraform.runner import Terraform
from llm_serving.workflows import aws as install_aws
from llm_serving.workflows.aws import ServingCommands, WorkflowRequest, WorkflowResult
from tests.operations.conftest import SMALL_FLEET, UNKNOWN_DIGEST, Recorder

FLEET = f"{SMALL_FLEET}add_ons: {{operators: on}}\n"


@pytest.fixture
def context(tmp_path: Path) -> FleetContext:
    """A fleet whose stacks stand."""
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET)
    program = Terraform("terraform", "terraform", "1.11.4", "linux_amd64", {}, "nowhere")
    return FleetContext(load(file, Fleet), tmp_path, {}, program, AwsSession("us-west-2"), "123456789012")


def list_installed(recorder: Recorder) -> list[str]:
    """What was installed, in order."""
    return [
        call[3] if call[0] == "helm" else " ".join(call[2:])
        for call in recorder.calls
        if call[1] in ("upgrade", "apply")
    ]


def test_chart_installation_resumes_after_a_failure_and_repeats_none(
    recorder: Recorder, context: FleetContext, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder.install("aws")
    recorder.install("helm", failing=("karpenter",))
    progress = Checkpoints(context.data / "journal.json", "account")
    with pytest.raises(console.CommandFailed, match="helm upgrade --install karpenter"):
        install_aws._install_add_ons(context, progress, WorkflowResult([]))
    first = list_installed(recorder)
    assert first == ["StorageClass", "nvidia-device-plugin", "aws-load-balancer-controller", "karpenter"]

    recorder.install("helm")
    steps = WorkflowResult([])
    install_aws._install_add_ons(context, Checkpoints(context.data / "journal.json", "account"), steps)
    assert list_installed(recorder)[len(first) :] == ["karpenter", "EC2NodeClass NodePool", "keda", "kuberay-operator"]
    skipped = ["storage-class", "nvidia-device-plugin", "aws-load-balancer-controller"]
    assert steps.skipped == [f"chart {name}" for name in skipped]
    assert image_pins.read_charts(context.document.path) == {"kuberay-operator:1.7.0": UNKNOWN_DIGEST}
    assert "✓ chart nvidia-device-plugin: skipped, installed before" in capsys.readouterr().err


def test_the_blueprint_is_deployed_after_the_charts_then_validated_and_finds_the_fleets_own_cluster(
    recorder: Recorder, context: FleetContext
) -> None:
    recorder.install("aws", "helm")
    calls: list[tuple[str, str, str | None, int]] = []

    def note(verb: str, target: str, aws: AwsSession) -> None:
        calls.append((verb, target, aws.child_env["KUBECONFIG"], len(list_installed(recorder))))

    serving = ServingCommands(
        deploy=lambda *arguments: note("deploy", *arguments[-2:]),
        validate=lambda *arguments: note("validate", *arguments[-2:]),
        destroy=lambda *arguments: note("destroy", *arguments[-2:]),
    )
    before = os.environ.get("KUBECONFIG")
    options = WorkflowRequest("eks", context.document, context.data / "mine")
    progress = Checkpoints(context.data / "journal.json", "account")
    install_aws._serve_blueprint(options, serving, context, progress, WorkflowResult([]))
    kubeconfig = str(context.data / "kubeconfig")
    assert calls == [("deploy", "eks", kubeconfig, 7), ("validate", "eks", kubeconfig, 7)]
    assert os.environ.get("KUBECONFIG") == before
    last_step = progress.find_latest("blueprint")
    assert last_step and last_step.note == f"{context.data / 'mine'} eks"


def test_a_preflight_that_passed_is_not_asked_again_for_the_same_file(
    aws: str, context: FleetContext, capsys: pytest.CaptureFixture[str]
) -> None:
    options, steps = WorkflowRequest("eks", context.document, None), WorkflowResult([])
    progress = Checkpoints(context.data / "journal.json", "account")
    install_aws._run_preflight(options, context.aws, progress, steps)
    assert "identity" in capsys.readouterr().out
    install_aws._run_preflight(options, context.aws, progress, steps)
    output = capsys.readouterr()
    assert output.out == "" and "Preflight: skipped, passed on 20" in output.err
    assert steps.skipped == ["preflight"]
    context.document.path.write_text(FLEET.replace("0..4", "0..5"))
    install_aws._run_preflight(options, context.aws, progress, steps)
    assert "identity" in capsys.readouterr().out
