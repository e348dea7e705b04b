from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from llm_serving.fleet.model import Fleet
from llm_serving.operations import destroy
from llm_serving.operations.context import Site, State
from llm_serving.operations.destroy import Going
from llm_serving.operations.non_empty_stores import Held
from llm_serving.settings.document import load
from llm_serving.settings.errors import AnswerIsNo, Unavailable
from llm_serving.terraform.runner import Terraform
from tests.operations.conftest import Recorder

FLEET = """\
name: small
region: us-west-2
zones: us-west-2a
orchestrator: eks
pools:
  general: {types: g6e.2xlarge, size: 0..4}
"""
HELD = [Held("bucket", "small-models", "1 object with old versions, 2 B")]


@pytest.fixture
def made_at(tmp_path: Path) -> Site:
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET)
    folders = {name: tmp_path / name for name in ("network", "storage", "eks")}
    program = Terraform("terraform", "terraform", "1.11.4", "linux_amd64", {}, "nowhere")
    return Site(load(file, Fleet), tmp_path, folders, program, None, "123456789012")


def going(
    site: Site,
    *,
    held: list[Held] | None = None,
    karpenter: tuple[str, ...] = (),
    services: tuple[str, ...] = (),
    with_data: bool = False,
) -> Going:
    states: Mapping[str, State] = {name: State({}, ("aws_eks_cluster.cluster",)) for name in site.folders}
    return Going(site, states, held or [], karpenter, services, (), with_data)


def test_the_stack_with_the_machines_goes_first_and_what_holds_data_stays(made_at: Site) -> None:
    assert going(made_at).stacks == ["eks", "network", "storage"]
    assert going(made_at, held=HELD).stacks == ["eks", "network"]
    assert going(made_at, held=HELD, with_data=True).stacks == ["eks", "network", "storage"]


def test_the_pools_machines_are_told_from_the_systems_own(tmp_path: Path) -> None:
    made = {
        "aws_eks_node_group": {"system": {"node_group_name": "system"}, "fixed": {"node_group_name": "fixed"}},
        "aws_autoscaling_group": {"general-machines": {}},
        "aws_eks_cluster": {"cluster": {}},
    }
    (tmp_path / "cdk.tf.json").write_text(json.dumps({"resource": made}))
    assert destroy._machines(tmp_path) == ["aws_autoscaling_group.general-machines", "aws_eks_node_group.fixed"]


def test_a_service_that_keeps_its_machines_is_named_with_the_way_to_end_it(made_at: Site) -> None:
    destroy.require_alone(going(made_at))
    with pytest.raises(AnswerIsNo) as refused:
        destroy.require_alone(going(made_at, services=("mine-worker",)))
    assert str(refused.value) == (
        "mine-worker still runs on the cluster small, and keeps its machines. "
        "Run `blueprint destroy DIR --target ecs` first"
    )


def test_a_cluster_out_of_reach_is_not_destroyed_while_machines_of_karpenters_run(
    recorder: Recorder, made_at: Site, aws: str
) -> None:
    recorder.lend("aws", "kubectl", "helm", failing=("/readyz",))
    with pytest.raises(Unavailable) as refused:
        destroy._end_what_the_cluster_made(going(made_at, karpenter=("i-1", "i-2")))
    assert str(refused.value).startswith(
        "i-1 and i-2 would outlive the cluster, which made them: the cluster small does not answer kubectl"
    )
    destroy._end_what_the_cluster_made(going(made_at))  # nothing of its own is there: Terraform can go on
    assert not [call for call in recorder.calls if call[0] == "helm"]


def test_in_a_cluster_machines_go_then_load_balancers_then_charts(recorder: Recorder, made_at: Site) -> None:
    recorder.lend("aws", "kubectl", "helm")
    destroy._end_what_the_cluster_made(going(made_at, karpenter=("i-1",)))
    verbs = [" ".join(call[:3]) for call in recorder.calls]
    order = [
        "kubectl delete nodepools.karpenter.sh",
        "kubectl delete nodeclaims.karpenter.sh",
        "kubectl delete services",
        "helm uninstall karpenter",
        "helm uninstall aws-load-balancer-controller",
    ]
    assert [verb for verb in verbs if verb in order] == order
