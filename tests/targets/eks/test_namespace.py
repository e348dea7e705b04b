"""What a release on EKS presumes lies beside its rendered values."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from llm_serving import paths
from llm_serving.operations.kube_api import Kind
from llm_serving.settings.errors import InputError
from llm_serving.targets import planning
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.eks import namespace
from tests.control_plane.control_plane import ControlPlane
from tests.infra.deployments import ACCOUNT

NAMESPACE = Kind("v1", "Namespace")


def plan_deployment(folder: Path) -> DeploymentPlan:
    shutil.copytree(paths.PATTERNS / "aggregated", folder / "mine")
    fleet = paths.PATTERNS.parent / "fleet.yaml"
    return planning.plan(folder / "mine", fleet, target="eks", root=folder, account=ACCOUNT)


def test_the_namespace_and_account_that_the_values_name_are_rendered_beside_them(tmp_path: Path) -> None:
    plan = plan_deployment(tmp_path)
    values = yaml.safe_load(planning.write_rendered(plan).read_text())
    manifests = list(yaml.safe_load_all((plan.rendered / "namespace.yaml").read_text()))
    assert manifests == namespace.build_manifests(plan.deployment), "what `deploy` applies"
    space, account = manifests
    assert (space["kind"], space["metadata"]["name"]) == ("Namespace", "serving")
    levels = {name: level for name, level in space["metadata"]["labels"].items() if name.startswith("pod-security.")}
    assert levels == {"pod-security.kubernetes.io/audit": "restricted"}, (
        "`deploy` leaves the owner's `enforce` as it is"
    )
    assert (account["kind"], account["metadata"]["namespace"]) == ("ServiceAccount", "serving")
    assert values["serviceAccount"] == {"create": False, "name": account["metadata"]["name"]}


def test_roles_that_give_way_have_the_lowest_priority_for_which_the_autoscaler_starts_nodes(tmp_path: Path) -> None:
    plan = plan_deployment(tmp_path)
    assert [manifest["kind"] for manifest in namespace.build_manifests(plan.deployment)] == [
        "Namespace",
        "ServiceAccount",
    ]
    blueprint = tmp_path / "mine" / "blueprint.yaml"
    blueprint.write_text(blueprint.read_text().replace("accelerators: 1}", "accelerators: 1, gives_way: on}"))
    plan = planning.plan(
        tmp_path / "mine", paths.PATTERNS.parent / "fleet.yaml", target="eks", root=tmp_path, account=ACCOUNT
    )
    *_, priority = namespace.build_manifests(plan.deployment)
    assert (priority["kind"], priority["value"], priority["preemptionPolicy"]) == ("PriorityClass", -10, "Never")
    roles = yaml.safe_load(planning.write_rendered(plan).read_text())["roles"]
    assert {name: role.get("priorityClass") for name, role in roles.items()} == {
        "worker": priority["metadata"]["name"],
        "router": None,
    }


def test_an_edited_namespace_file_is_overwritten_only_on_request(tmp_path: Path) -> None:
    plan = plan_deployment(tmp_path)
    planning.write_rendered(plan)
    file = plan.rendered / "namespace.yaml"
    file.write_text("mine\n")
    with pytest.raises(InputError) as error:
        planning.write_rendered(plan)
    assert str(error.value) == (
        f"{file}: edited by hand since it was rendered, and would be overwritten. "
        "Fix: keep your change in a file of another name, or pass --force."
    )
    planning.write_rendered(plan, force=True)
    assert file.read_text() == namespace.format_file(plan.deployment)


def test_labels_that_a_platform_has_given_the_namespace_stay(tmp_path: Path, control_plane: ControlPlane) -> None:
    """As its own level of Pod Security, by whatever program: Kubernetes refuses to let another one change it."""
    deployment = plan_deployment(tmp_path).deployment
    environment = deployment.environment.model_copy(update={"namespace": "platform"})
    deployment = deployment.model_copy(update={"environment": environment})
    own = {"pod-security.kubernetes.io/audit": "baseline", "app.kubernetes.io/managed-by": "Terraform", "team": "ads"}
    labeled = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "platform", "labels": own}}
    control_plane.request("post", "/api/v1/namespaces?fieldManager=terraform", labeled)
    for _ in range(2):
        namespace.apply(control_plane.api, deployment)
        labels = control_plane.read(NAMESPACE, "platform")["metadata"]["labels"]
        assert {**labels, **own} == labels
        assert labels["elbv2.k8s.aws/pod-readiness-gate-inject"] == "enabled"
    control_plane.remove(labeled)
