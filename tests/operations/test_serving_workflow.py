"""The part of the AWS workflow that needs instances, with recording programs in place of a cluster.

It proves the order, what is passed on, and what is not done twice; nothing of helm or the cluster.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from llm_serving import console
from llm_serving.aws.session import AwsSession
from llm_serving.cli import main
from llm_serving.fleet.model import Fleet
from llm_serving.operations import image_pins
from llm_serving.operations.checkpoints import Checkpoints
from llm_serving.operations.context import FleetContext, build_data_path
from llm_serving.operations.kube_api import Kind, Manifest
from llm_serving.operations.plans import StackPlan
from llm_serving.settings.document import load
from llm_serving.settings.errors import CheckFailed
from llm_serving.targets.eks.target import EksTarget
from llm_serving.targets.on_aws.images import MissingImage
from llm_serving.terraform.runner import Terraform
from llm_serving.workflows import aws as install_aws
from llm_serving.workflows.aws import Workflow, WorkflowRequest, WorkflowResult
from tests.operations.conftest import EXISTING, SMALL_FLEET, UNKNOWN_DIGEST, RecordedApi, Recorder

FLEET = f"{SMALL_FLEET}add_ons: {{operators: on}}\n"


@pytest.fixture
def context(tmp_path: Path) -> FleetContext:
    """A fleet whose stacks stand."""
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET)
    program = Terraform("terraform", "terraform", "1.11.4", "linux_amd64", {}, "nowhere")
    return FleetContext(load(file, Fleet), tmp_path, {}, program, AwsSession("us-west-2"), "123456789012")


def build_workflow(context: FleetContext, blueprint: Path | None = None) -> Workflow:
    """A run that reads the checkpoints which an earlier one left."""
    request = WorkflowRequest(EksTarget(), context.document, blueprint)
    checkpoints = Checkpoints(context.data / "journal.json", "account")
    return Workflow(request, context.aws, checkpoints, WorkflowResult([]))


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
    with pytest.raises(console.CommandFailed, match="helm upgrade --install karpenter"):
        build_workflow(context)._install_add_ons(context)
    first = list_installed(recorder)
    plugin = ["nvidia-device-plugin", "DaemonSet"]
    assert first == ["StorageClass", "DaemonSet", *plugin, "aws-load-balancer-controller", "karpenter"]

    recorder.install("helm")
    resumed = build_workflow(context)
    resumed._install_add_ons(context)
    assert list_installed(recorder)[len(first) :] == [
        "karpenter",
        "EC2NodeClass NodePool",
        "Deployment Namespace PriorityClass",
        "keda",
        "kuberay-operator",
    ]
    plugin = ["nvidia-device-plugin", "gpu-health"]
    skipped = ["storage-class", "node-monitoring", *plugin, "aws-load-balancer-controller"]
    assert resumed.result.skipped == [f"chart {name}" for name in skipped]
    assert image_pins.read_charts(context.document.path) == {"kuberay-operator:1.7.0": UNKNOWN_DIGEST}
    assert "✓ chart nvidia-device-plugin: skipped, installed before" in capsys.readouterr().err


def test_charts_that_were_removed_meanwhile_are_installed_again(recorder: Recorder, context: FleetContext) -> None:
    recorder.install("aws", "helm")
    context = replace(context, data=build_data_path(context.fleet))
    context.data.mkdir(parents=True)
    build_workflow(context)._install_add_ons(context)
    first = list_installed(recorder)
    assert main.run(["platform", "remove", "--yes", "--fleet", str(context.document.path)]) == 0
    build_workflow(context)._install_add_ons(context)
    assert list_installed(recorder) == [*first, *first]


def test_charts_stay_while_something_waits_for_the_load_balancer_controller(
    recorder: Recorder, context: FleetContext, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder.install("helm")

    def list_ingresses(_: RecordedApi, kind: Kind, **__: object) -> list[Manifest]:
        waiting = {"name": "chat", "namespace": "serving", "finalizers": ["ingress.k8s.aws/resources"]}
        other = {"name": "own", "namespace": "default"}
        return [{"kind": kind.kind, "metadata": row} for row in (waiting, other) if kind.kind == "Ingress"]

    monkeypatch.setattr(RecordedApi, "list_objects", list_ingresses)
    assert main.run(["platform", "remove", "--yes", "--fleet", str(context.document.path)]) == 1
    assert "Ingress serving/chat: only aws-load-balancer-controller can delete" in capsys.readouterr().err
    assert not [call for call in recorder.calls if "uninstall" in call]


def test_a_chart_whose_helm_was_killed_is_named_with_the_way_out(recorder: Recorder, context: FleetContext) -> None:
    recorder.install("aws")
    message = "Error: UPGRADE FAILED: another operation (install/upgrade/rollback) is in progress"
    recorder.install("helm", failing=("karpenter",), message=message)
    with pytest.raises(CheckFailed, match="run helm rollback karpenter --namespace kube-system, or helm uninstall"):
        build_workflow(context)._install_add_ons(context)


@pytest.mark.parametrize(("more", "name", "charts"), [("", "small", 10), (EXISTING, "platform", 0)])
def test_the_blueprint_is_deployed_after_the_charts_then_validated_and_finds_the_fleets_own_cluster(
    recorder: Recorder, context: FleetContext, monkeypatch: pytest.MonkeyPatch, more: str, name: str, charts: int
) -> None:
    recorder.install("aws", "helm")
    context.document.path.write_text(f"{FLEET}{more}")
    context = replace(context, document=load(context.document.path, Fleet))
    calls: list[tuple[str, str, str | None, int]] = []

    def note(verb: str, target: str, aws: AwsSession) -> None:
        calls.append((verb, target, aws.child_env["KUBECONFIG"], len(list_installed(recorder))))

    for verb in ("deploy", "validate", "destroy"):
        monkeypatch.setattr(install_aws.serving, verb, lambda *words, aws, verb=verb, **_: note(verb, words[-1], aws))
    before = os.environ.get("KUBECONFIG")
    workflow = build_workflow(context, context.data / "mine")
    workflow._serve_blueprint(context)
    kubeconfig = str(context.data / "kubeconfig")
    assert calls == [("deploy", "eks", kubeconfig, charts), ("validate", "eks", kubeconfig, charts)]
    assert ["aws", "eks", "update-kubeconfig", "--name", name, "--region", "us-west-2"] in recorder.calls
    assert os.environ.get("KUBECONFIG") == before
    last_step = workflow.checkpoints.find_latest("blueprint")
    assert last_step and last_step.note == f"{context.data / 'mine'} eks"


def list_all_as_missing(_: object, images: Iterator[str]) -> Iterator[MissingImage]:
    return (MissingImage(image, has_repository=True) for image in images)


class Started:
    """Stands for the steps around the images, and writes down their order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fleet_file: Path, missing: list[str]) -> None:
        self.steps: list[str] = []
        deployment = SimpleNamespace(services=[SimpleNamespace(image=image) for image in missing])
        plan = SimpleNamespace(deployment=deployment, fleet=SimpleNamespace(path=fleet_file))
        for name in ("_run_preflight", "_confirm_plan"):
            monkeypatch.setattr(Workflow, name, lambda *_, **__: None)
        monkeypatch.setattr(install_aws.plans, "create", lambda _: [StackPlan(name, 1) for name in STACKS])
        monkeypatch.setattr(install_aws.fleet_plan_table, "render", lambda *_: "")
        monkeypatch.setattr(install_aws.apply, "ensure_state_bucket", lambda _: None)
        monkeypatch.setattr(
            install_aws.apply, "apply", lambda _, plans: self.steps.append(f"apply {[plan.name for plan in plans]}")
        )
        monkeypatch.setattr(install_aws, "_upload_weights", lambda *_: self.steps.append("weights"))
        monkeypatch.setattr(EksTarget, "reach_cluster", lambda *_: self.reach())
        monkeypatch.setattr(Workflow, "_serve_blueprint", lambda *_: self.steps.append("serve"))
        monkeypatch.setattr(install_aws.planning, "plan", lambda *_, **__: plan)
        monkeypatch.setattr(install_aws.images, "list_missing", list_all_as_missing)
        monkeypatch.setattr(install_aws.console, "run", lambda words, **_: self.steps.append(" ".join(words[:2])))

    @contextlib.contextmanager
    def reach(self) -> Iterator[None]:
        self.steps.append("open")
        yield
        self.steps.append("close")


STACKS = ("network", "storage", "eks")
ROUTER = "123456789012.dkr.ecr.us-west-2.amazonaws.com/small/router:0.1.17-15"


def run_steps(context: FleetContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install_aws.context, "prepare", lambda *_, **__: context)
    build_workflow(context, context.data / "mine").run(yes=True)


@pytest.mark.parametrize("builder", ["docker", "buildah"])
def test_what_costs_by_the_hour_comes_after_the_images_and_the_weights(
    recorder: Recorder, context: FleetContext, monkeypatch: pytest.MonkeyPatch, builder: str
) -> None:
    recorder.install(builder)
    monkeypatch.setenv("PATH", str(recorder.folder))
    started = Started(monkeypatch, context.document.path, [ROUTER])
    run_steps(context, monkeypatch)
    build = f"{install_aws.ROOT}/images/build router"
    assert started.steps == [
        "apply ['storage']",
        build,
        "weights",
        "apply ['network', 'eks']",
        "open",
        "serve",
        "close",
    ]


def test_without_a_builder_the_images_are_asked_for_before_anything_costs(
    recorder: Recorder, context: FleetContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(recorder.folder))
    started = Started(monkeypatch, context.document.path, [ROUTER])
    with pytest.raises(CheckFailed) as error:
        run_steps(context, monkeypatch)
    assert started.steps == ["apply ['storage']"]
    fleet = context.document.path
    assert str(error.value) == (
        "router: not in the fleet's registry, and this machine has no docker, podman or buildah to build. Nothing that costs "
        "by the hour was created. Fix: install one of them, or run these where one is, then this again:\n"
        f"  images/build router --fleet {fleet}"
    )


def test_a_preflight_that_passed_is_not_asked_again_for_the_same_file(
    aws: str, context: FleetContext, capsys: pytest.CaptureFixture[str]
) -> None:
    text = FLEET.replace("zones: us-west-2a", "zones: [us-west-2a, us-west-2b]")
    context.document.path.write_text(text)
    workflow = build_workflow(replace(context, document=load(context.document.path, Fleet)))
    workflow._run_preflight()
    assert "identity" in capsys.readouterr().out
    workflow._run_preflight()
    output = capsys.readouterr()
    assert output.out == "" and "Preflight: skipped, passed on 20" in output.err
    assert workflow.result.skipped == ["preflight"]
    context.document.path.write_text(text.replace("0..4", "0..5"))
    workflow._run_preflight()
    assert "identity" in capsys.readouterr().out


@pytest.mark.parametrize("has_folder", [True, False])
def test_an_undo_that_was_interrupted_goes_on_without_the_cluster_or_the_folder_that_is_gone(
    has_folder: bool, context: FleetContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    if has_folder:
        (context.data / "mine").mkdir()
    context.document.path.write_text(FLEET.replace("zones: us-west-2a", "zones: [us-west-2a, us-west-2b]"))
    checkpoints = Checkpoints(context.data / "journal.json", "account")
    checkpoints.record("blueprint", note=f"{context.data / 'mine'} eks")
    steps: list[str] = []

    def destroy(_: object) -> None:
        steps.append("stacks")
        if steps.count("stacks") == 1:
            raise KeyboardInterrupt

    monkeypatch.chdir(context.data)
    monkeypatch.setattr(
        install_aws.context, "use_aws_or_emulator", lambda *_, **__: contextlib.nullcontext(context.aws)
    )
    monkeypatch.setattr(install_aws.context, "prepare", lambda *_, **__: context)
    monkeypatch.setattr(install_aws, "_open_checkpoints", lambda *_: Checkpoints(checkpoints.file, "account"))
    monkeypatch.setattr(install_aws.destroy, "plan_destroy", lambda *_, **__: SimpleNamespace(is_empty=False))
    monkeypatch.setattr(install_aws.destroy, "require_no_dependents", lambda _: None)
    monkeypatch.setattr(install_aws.destroy, "destroy", destroy)
    monkeypatch.setattr(install_aws.serving, "destroy", lambda *_, **__: steps.append("blueprint"))
    for name in ("render_destroy_plan", "render_destroy_summary"):
        monkeypatch.setattr(install_aws.fleet_plan_table, name, lambda _: "")
    with pytest.raises(KeyboardInterrupt):
        install_aws.undo(context.document.path, with_data=False, yes=True)
    install_aws.undo(context.document.path, with_data=False, yes=True)
    assert steps == [*["blueprint"] * has_folder, "stacks", "stacks"]
