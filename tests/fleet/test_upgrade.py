"""What is behind, in which order: from the file alone, and with what runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from llm_serving.catalog import ecs, eks, images
from llm_serving.fleet import machine_images, upgrade
from llm_serving.fleet.add_ons import select_add_ons
from llm_serving.fleet.eks_add_ons import list_eks_add_ons
from llm_serving.fleet.model import Fleet
from llm_serving.fleet.upgrade import Installed, Step
from llm_serving.settings.document import load
from llm_serving.settings.errors import InputError

NEWEST = max(eks.END_OF_STANDARD_SUPPORT)
FLEET = """\
name: demo
region: us-west-2
zones: [us-west-2a, us-west-2b]
orchestrator: {orchestrator}
eks: {{version: "{version}"{more}}}
pools:
  general: {{types: g6e.2xlarge, size: 0..4}}
"""


def read_fleet(tmp_path: Path, version: str = NEWEST, more: str = "", orchestrator: str = "eks") -> Fleet:
    text = FLEET.format(version=version, more=more, orchestrator=orchestrator)
    file = tmp_path / "fleet.yaml"
    file.write_text(re.sub("^eks: .*\n", "", text, flags=re.MULTILINE) if orchestrator == "ecs" else text)
    return load(file, Fleet).value


def list_steps(fleet: Fleet, installed: Installed | None = None) -> list[Step]:
    return upgrade.list_steps(fleet, installed)


def format_ami(kubernetes: str, release: str = eks.AL2023) -> str:
    return f"amazon-eks-node-al2023-x86_64-nvidia-{kubernetes}-{release}"


def build_installed(fleet: Fleet, version: str, **changed: object) -> Installed:
    """A cluster in which all is as pinned for a version, but for what is changed."""
    add_ons = {row.name: row.versions[version] for row in eks.ADD_ONS if row.csi_driver is None}
    charts = {row.add_on.name: str(row.add_on.version) for row in select_add_ons(fleet)}
    known = {"kubernetes": version, "add_ons": add_ons, "charts": charts, "amis": {format_ami(version): 2}}
    return Installed(**{**known, **changed})  # type: ignore[arg-type]


def name_steps(steps: Sequence[Step]) -> list[tuple[str, object]]:
    return [(step.name, step.edit) for step in steps]


def test_a_fleet_that_has_all_that_is_pinned_has_nothing_behind(tmp_path: Path) -> None:
    fleet = read_fleet(tmp_path)
    assert {row.name for row in list_eks_add_ons(fleet)} == set(build_installed(fleet, NEWEST).add_ons)
    assert list_steps(fleet) == list_steps(fleet, build_installed(fleet, NEWEST)) == []


def test_no_minor_version_is_skipped_and_each_says_what_its_add_ons_become(tmp_path: Path) -> None:
    steps = list_steps(read_fleet(tmp_path, "1.34"))
    assert name_steps(steps) == [
        ("Kubernetes 1.35", (("eks", "version"), '"1.35"')),
        ("Kubernetes 1.36", (("eks", "version"), '"1.36"')),
    ]
    assert steps[0].changes == (
        "control plane 1.34 -> 1.35",
        "kube-proxy v1.34.6-eksbuild.29 -> v1.35.3-eksbuild.21",
        "coredns v1.12.4-eksbuild.38 -> v1.14.3-eksbuild.14",
        "nodes -> 1.35",
    )
    assert steps[0].drains == (
        "every node of system and of each node group, one of a group at a time; "
        "Karpenter's nodes one of a NodePool at a time (general)"
    )
    assert (
        steps[0].rule.source
        == "eksctl user guide, Cluster upgrades; kubernetes.io/releases/version-skew-policy; 2026-11"
    )


def test_a_pinned_release_of_an_ami_moves_before_kubernetes(tmp_path: Path) -> None:
    steps = list_steps(read_fleet(tmp_path, "1.35", ", al2023: v20250915, bottlerocket: 1.9.0"))
    assert name_steps(steps) == [
        ("AMI al2023 on EKS", (("eks", "al2023"), eks.AL2023)),
        ("AMI bottlerocket on EKS", (("eks", "bottlerocket"), eks.BOTTLEROCKET)),
        ("Kubernetes 1.36", (("eks", "version"), '"1.36"')),
    ]


def test_a_release_newer_than_the_pinned_one_is_not_behind(tmp_path: Path) -> None:
    assert list_steps(read_fleet(tmp_path, more=", al2023: v20991231, bottlerocket: 1.100.0")) == []


def test_what_a_file_asks_for_is_applied_before_the_next_version(tmp_path: Path) -> None:
    fleet = read_fleet(tmp_path, "1.35")
    steps = list_steps(fleet, build_installed(fleet, "1.34"))
    assert name_steps(steps) == [("Kubernetes 1.35", None), ("Kubernetes 1.36", (("eks", "version"), '"1.36"'))]
    assert steps[0].commands == ("blueprint fleet apply eks",)


def test_another_ami_of_karpenter_s_nodes_comes_with_the_charts(tmp_path: Path) -> None:
    """Its class names the release. Terraform has that of node groups and of ECS only."""
    apply, install = "blueprint fleet apply eks", "blueprint platform install"
    fleet = read_fleet(tmp_path, more=", al2023: v20250915")
    assert list_steps(fleet)[0].commands == (apply, install)
    older = {format_ami(NEWEST, "v20250915"): 2}
    fleet = read_fleet(tmp_path)
    assert [step.commands for step in list_steps(fleet, build_installed(fleet, NEWEST, amis=older))] == [
        (apply, install)
    ]
    file = tmp_path / "fleet.yaml"
    file.write_text(file.read_text().replace("size: 0..4", "size: 0..4, by: node-groups"))
    fleet = load(file, Fleet).value
    assert [step.commands for step in list_steps(fleet, build_installed(fleet, NEWEST, amis=older))] == [(apply,)]


def test_a_default_that_is_the_next_version_is_written_to_the_file(tmp_path: Path) -> None:
    """Without it in the file, an apply refuses to move the cluster."""
    file = tmp_path / "fleet.yaml"
    fleet = read_fleet(tmp_path, "1.35")
    file.write_text(re.sub("^eks: .*\n", "", file.read_text(), flags=re.MULTILINE))
    by_default = load(file, Fleet).value
    assert by_default.eks.version == fleet.eks.version
    running = build_installed(fleet, "1.34")
    assert list_steps(by_default, running)[0].edit == (("eks", "version"), '"1.35"')
    assert list_steps(fleet, running)[0].edit is None


def test_a_file_two_versions_ahead_goes_back_to_the_next_one(tmp_path: Path) -> None:
    fleet = read_fleet(tmp_path, "1.36")
    steps = list_steps(fleet, build_installed(fleet, "1.34"))
    assert name_steps(steps) == [("Kubernetes 1.35", (("eks", "version"), '"1.35"')), ("Kubernetes 1.36", None)]


def test_a_file_behind_the_control_plane_follows_it(tmp_path: Path) -> None:
    fleet = read_fleet(tmp_path, "1.35")
    [step] = list_steps(fleet, build_installed(fleet, "1.36"))
    assert (step.edit, step.changes) == (
        (("eks", "version"), '"1.36"'),
        ("the fleet file 1.35 -> 1.36, as the control plane is",),
    )


def test_add_ons_and_nodes_of_the_running_version_come_before_the_next_one(tmp_path: Path) -> None:
    fleet = read_fleet(tmp_path, "1.36")
    running = build_installed(fleet, "1.35")
    add_ons = {**running.add_ons, "coredns": "v1.9.3-eksbuild.1"}
    amis = {format_ami("1.31", "v20250915"): 3, format_ami("1.35"): 1, "mine-2026": 2}
    steps = list_steps(fleet, build_installed(fleet, "1.35", add_ons=add_ons, amis=amis))
    assert name_steps(steps) == [("Kubernetes 1.35", (("eks", "version"), '"1.35"')), ("Kubernetes 1.36", None)]
    assert steps[0].changes == (
        f"coredns v1.9.3-eksbuild.1 -> {running.add_ons['coredns']}",
        f"3 x al2023 1.31 v20250915 -> 1.35 {eks.AL2023}: 4 minor versions behind, 3 are allowed",
    )
    assert steps[0].rule.source == "EKS API reference, UpdateClusterVersion, botocore 1.44.5"


def test_charts_come_first_and_engines_last(tmp_path: Path) -> None:
    fleet = read_fleet(tmp_path, "1.35")
    charts = {**build_installed(fleet, "1.35").charts, "karpenter": "1.6.0"}
    known = next(reference for reference in images.load() if reference.startswith("vllm/vllm-openai:"))
    older = "123456789012.dkr.ecr.us-west-2.amazonaws.com/demo-docker-hub/vllm/vllm-openai:v0.1.0@sha256:0"
    steps = list_steps(fleet, build_installed(fleet, "1.35", charts=charts, images=frozenset({older, known, "mine:1"})))
    assert [step.name for step in steps] == ["Platform charts", "Kubernetes 1.36", "Deployments"]
    pinned = next(row.add_on for row in select_add_ons(fleet) if row.add_on.name == "karpenter")
    assert steps[0].changes == (f"karpenter 1.6.0 -> {pinned.version}",)
    assert steps[2].changes == (f"vllm/vllm-openai v0.1.0 -> {known.rpartition(':')[2]}",)


def test_charts_that_could_not_be_read_are_no_step(tmp_path: Path) -> None:
    fleet = read_fleet(tmp_path)
    assert list_steps(fleet, build_installed(fleet, NEWEST, charts={})) == []


def test_a_cluster_older_than_every_pinned_version_is_not_moved_over_a_gap(tmp_path: Path) -> None:
    fleet = read_fleet(tmp_path, "1.34")
    with pytest.raises(InputError) as error:
        list_steps(fleet, Installed(kubernetes="1.32"))
    assert str(error.value) == (
        "Kubernetes 1.32: this release pins no add-ons for 1.33, and no version may be skipped. "
        "Fix: upgrade to 1.33 with an earlier release first."
    )


def test_instances_of_ecs_with_another_ami_are_a_step(tmp_path: Path) -> None:
    fleet = read_fleet(tmp_path, orchestrator="ecs")
    name = "al2023-ami-ecs-gpu-hvm-{}-kernel-6.1-x86_64-ebs"
    [step] = list_steps(fleet, Installed(amis={name.format("2023.0.20250101"): 3, name.format(ecs.AL2023): 1}))
    assert step.changes == (f"3 x al2023 2023.0.20250101 -> {ecs.AL2023}",)
    in_new_region = fleet.model_copy(update={"region": "eu-west-9", "zones": ("eu-west-9a",)})
    assert list_steps(in_new_region, Installed()) == []
    assert step.drains == "every instance of general: a tenth of a group at a time, at least one"


@pytest.mark.parametrize(("orchestrator", "os"), [("eks", "al2023"), ("eks", "bottlerocket"), ("ecs", "al2023")])
def test_names_of_amis_are_read_as_their_parameters_write_them(tmp_path: Path, orchestrator: str, os: str) -> None:
    """The parameter of AL2023 ends with the AMI's own name; Bottlerocket's name has its release and a commit."""
    read_fleet(tmp_path, "1.35", orchestrator=orchestrator)
    file = tmp_path / "fleet.yaml"
    file.write_text(file.read_text().replace("size: 0..4", "size: 0..4" + f", os: {os}" * (os != "al2023")))
    fleet = load(file, Fleet).value
    for parameter in machine_images.list_parameters(fleet):
        words = parameter.split("/")
        name = f"bottlerocket-{words[4]}-{words[5]}-v{words[6]}-1a2b3c4d"
        node = upgrade.parse_ami(name if words[3] == "bottlerocket" else words[-2])
        assert node is not None, parameter
        assert node.release in parameter
        assert node.kubernetes == ("1.35" if orchestrator == "eks" else None)
