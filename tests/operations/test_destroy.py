from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from llm_serving.aws.session import AwsSession
from llm_serving.fleet.model import Fleet
from llm_serving.operations import destroy, kube_api
from llm_serving.operations.claim_volumes import ClaimVolume
from llm_serving.operations.context import FleetContext
from llm_serving.operations.destroy import DestroyPlan
from llm_serving.operations.kube_api import KubeApi
from llm_serving.operations.non_empty_stores import NonEmptyStore
from llm_serving.settings.document import load
from llm_serving.settings.errors import CheckFailed, Unavailable
from llm_serving.tables import fleet_plan_table
from llm_serving.terraform.runner import Terraform
from llm_serving.terraform.state import StackState
from tests.operations.conftest import EXISTING, SMALL_FLEET, Recorder

VOLUMES = (ClaimVolume("vol-1", 80, "serving/cache"),)
NON_EMPTY = [NonEmptyStore("bucket", "small-models", "1 object with old versions, 2 B")]


@pytest.fixture
def context(tmp_path: Path) -> FleetContext:
    file = tmp_path / "fleet.yaml"
    file.write_text(SMALL_FLEET)
    folders = {name: tmp_path / name for name in ("network", "storage", "eks")}
    for name, folder in folders.items():
        folder.mkdir()
        needs = ["network"] if name == "eks" else []
        (folder / "cdk.tf.json").write_text(json.dumps({"//": {"needs": needs}}))
    program = Terraform("terraform", "terraform", "1.11.4", "linux_amd64", {}, "nowhere")
    return FleetContext(load(file, Fleet), tmp_path, folders, program, AwsSession("us-west-2"), "123456789012")


def build_plan(
    context: FleetContext,
    *,
    non_empty: list[NonEmptyStore] | None = None,
    karpenter: tuple[str, ...] = (),
    services: tuple[str, ...] = (),
    volumes: tuple[ClaimVolume, ...] = (),
    with_data: bool = False,
) -> DestroyPlan:
    states: Mapping[str, StackState] = {name: StackState({}, ("aws_eks_cluster.cluster",)) for name in context.folders}
    return DestroyPlan(context, states, non_empty or [], volumes, karpenter, services, (), with_data)


def test_the_stack_with_instances_is_destroyed_first_and_data_is_kept(context: FleetContext) -> None:
    assert build_plan(context).stacks == ["eks", "network", "storage"]
    assert build_plan(context, non_empty=NON_EMPTY).stacks == ["eks", "network"]
    assert build_plan(context, non_empty=NON_EMPTY, with_data=True).stacks == ["eks", "network", "storage"]


def test_the_pools_instances_are_distinguished_from_the_systems(tmp_path: Path) -> None:
    resources = {
        "aws_eks_node_group": {"system": {"node_group_name": "system"}, "fixed": {"node_group_name": "fixed"}},
        "aws_autoscaling_group": {"general-machines": {}},
        "aws_eks_cluster": {"cluster": {}},
    }
    (tmp_path / "cdk.tf.json").write_text(json.dumps({"resource": resources}))
    assert destroy._list_instance_addresses(tmp_path) == [
        "aws_autoscaling_group.general-machines",
        "aws_eks_node_group.fixed",
    ]


def test_a_service_that_keeps_instances_is_named_with_the_fix(context: FleetContext) -> None:
    destroy.require_no_dependents(build_plan(context))
    with pytest.raises(CheckFailed) as error:
        destroy.require_no_dependents(build_plan(context, services=("mine-worker",)))
    assert str(error.value) == (
        "mine-worker still running on the cluster small, on its instances. "
        "Fix: run `blueprint destroy DIR --target ecs` first."
    )


def test_a_cluster_out_of_reach_is_not_destroyed_while_machines_of_karpenters_run(
    recorder: Recorder, aws: str, context: FleetContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder.install("aws", "helm")
    monkeypatch.setattr(kube_api, "open_api", KubeApi)  # the kubeconfig is missing
    with pytest.raises(Unavailable) as error:
        destroy._delete_cluster_resources(build_plan(context, karpenter=("i-1", "i-2")))
    assert str(error.value).startswith(
        "i-1 and i-2 would outlive the cluster, which made them: the cluster small does not respond (cannot reach "
    )
    destroy._delete_cluster_resources(build_plan(context))  # nothing of its own is there: Terraform can go on
    assert not [call for call in recorder.calls if call[0] == "helm"]


def test_an_existing_cluster_is_left_alone(recorder: Recorder, context: FleetContext) -> None:
    context.document.path.write_text(f"{SMALL_FLEET}{EXISTING}")
    existing = replace(context, document=load(context.document.path, Fleet))
    plan = replace(build_plan(existing), states={"eks": StackState({}, ("aws_iam_role.engines-role",))})
    destroy.require_no_dependents(plan)
    destroy._delete_cluster_resources(plan)
    assert recorder.calls == []
    output = Console(width=200, record=True)
    output.print(fleet_plan_table.render_destroy_plan(plan))
    assert "kept  cluster platform and the deployments in it" in output.export_text()
    with pytest.raises(CheckFailed, match="this fleet made another cluster"):
        destroy.require_no_dependents(build_plan(existing))


def test_in_a_cluster_machines_go_then_load_balancers_then_charts(recorder: Recorder, context: FleetContext) -> None:
    recorder.install("aws", "helm")
    destroy._delete_cluster_resources(build_plan(context, karpenter=("i-1",)))
    verbs = [" ".join(call[:3]) for call in recorder.calls]
    order = [
        "api delete NodePool",
        "api delete NodeClaim",
        "api delete Service",
        "helm uninstall karpenter",
        "helm uninstall aws-load-balancer-controller",
    ]
    assert [verb for verb in verbs if verb in order] == order


def _render(context: FleetContext, *, with_data: bool, stores: bool = True) -> str:
    plan = build_plan(context, non_empty=NON_EMPTY if stores else [], volumes=VOLUMES, with_data=with_data)
    output = Console(width=200, record=True)
    output.print(fleet_plan_table.render_destroy_plan(plan), fleet_plan_table.render_destroy_summary(plan))
    return output.export_text()


def test_a_destroy_names_the_volumes_that_it_keeps_and_how_to_delete_them(context: FleetContext) -> None:
    rendered = _render(context, with_data=False)
    assert "kept  volume vol-1: 80 GiB of the claim serving/cache" in rendered
    kept = "Kept: the stack storage with small-models and 1 volume of claims, which cost. To delete it too: blueprint"
    assert rendered.count(kept) == 2
    assert "Kept: 1 volume of claims, which cost." in _render(context, with_data=False, stores=False)


def test_a_destroy_with_data_deletes_the_volumes(context: FleetContext) -> None:
    rendered = _render(context, with_data=True)
    assert "permanently deleted  volume vol-1: 80 GiB of the claim serving/cache" in rendered
    assert "volumes 1; no instances are running." in rendered and "Kept" not in rendered


def test_volumes_that_an_earlier_destroy_kept_are_no_empty_plan_with_data(context: FleetContext) -> None:
    for with_data, is_empty in ((True, False), (False, True)):
        plan = build_plan(context, volumes=VOLUMES, with_data=with_data)
        assert type(plan)(**{**vars(plan), "states": {}}).is_empty is is_empty
