"""The steps that bring a fleet to what this release pins: in which order, what each drains, and who says so.

A step is what one apply, one install or one deploy does. Versions come from the fleet file and the catalog; where the
fleet is applied, from the account as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from llm_serving.catalog import ecs, eks, images
from llm_serving.catalog.images import Image
from llm_serving.fleet import machine_images
from llm_serving.fleet.add_ons import select_add_ons
from llm_serving.fleet.eks_add_ons import list_eks_add_ons
from llm_serving.fleet.groups import Group, resolve_all
from llm_serving.fleet.model import Fleet
from llm_serving.fleet.pool import Orchestrator
from llm_serving.settings.errors import InputError

MAX_KUBELET_SKEW = 3
"""Minor versions that a kubelet may be older than its API server. Source: kubernetes.io/releases/version-skew-policy,
2026-11."""


class Rule(NamedTuple):
    """Why a step has its place, and who says so."""

    reason: str
    source: str


CHARTS_FIRST = Rule(
    "controllers are updated before the Kubernetes version that they must know",
    "karpenter.sh/docs/upgrading/compatibility, 2026-11",
)
RELEASE_FIRST = Rule(
    "an AMI release has no image for a Kubernetes version that came after it",
    "EKS user guide, Retrieve recommended Amazon Linux AMI IDs, 2026-11",
)
NODES_FIRST = Rule(
    "EKS updates the control plane only if its node groups have the same version",
    "EKS API reference, UpdateClusterVersion, botocore 1.44.5",
)
ONE_MINOR = Rule(
    "the control plane moves one minor version at a time, and a kubelet is never newer than it",
    "eksctl user guide, Cluster upgrades; kubernetes.io/releases/version-skew-policy; 2026-11",
)
TEMPLATE_CHANGED = Rule(
    "instances keep the AMI that they were started with until they are replaced",
    "EC2 Auto Scaling API reference, StartInstanceRefresh, 2026-11",
)
IMAGES_LAST = Rule(
    "an engine needs at least the driver that its CUDA was built for, which the AMI has",
    "src/llm_serving/catalog/drivers.yaml",
)


_APPLY, _INSTALL = "blueprint fleet apply {}", "blueprint platform install"


@dataclass(frozen=True)
class Installed:
    """What runs in the account."""

    kubernetes: str | None = None
    """Version of the control plane; None where there is no cluster of EKS."""

    add_ons: Mapping[str, str] = field(default_factory=dict)
    """Versions of EKS's add-ons by name."""

    amis: Mapping[str, int] = field(default_factory=dict)
    """Running instances by the name of their AMI."""

    charts: Mapping[str, str] = field(default_factory=dict)
    """Versions of the platform's charts by name."""

    images: frozenset[str] = frozenset()
    """Images of all containers, as their registry names them."""


@dataclass(frozen=True)
class Step:
    """One thing to do."""

    name: str
    changes: tuple[str, ...]
    """What has which version, and gets which."""

    drains: str
    rule: Rule
    commands: tuple[str, ...]
    """In order."""

    edit: tuple[tuple[str, str], str] | None = None
    """Key of the fleet file and its value, before the commands; None where the file has it."""


def list_steps(fleet: Fleet, installed: Installed | None) -> list[Step]:
    """List what is behind, in the order to bring it up to date in.

    Raises:
        InputError: the cluster is older than all versions that this release knows.
    """
    groups = list(resolve_all(fleet))
    steps = [*_list_releases(fleet, groups), *_list_kubernetes(fleet, groups, installed)]
    if installed:
        steps = [
            *_list_charts(fleet, installed),
            *steps,
            *_list_ecs(fleet, groups, installed),
            *_list_images(installed),
        ]
    return steps


def _list_charts(fleet: Fleet, installed: Installed) -> Iterator[Step]:
    if not installed.charts:
        return
    changes = tuple(
        f"{row.add_on.name} {installed.charts.get(row.add_on.name, 'none')} -> {row.add_on.version}"
        for row in select_add_ons(fleet)
        if row.add_on.chart and installed.charts.get(row.add_on.name) != row.add_on.version
    )
    if changes:
        drains = "no node; the controllers' own pods restart"
        yield Step("Platform charts", changes, drains, CHARTS_FIRST, (_INSTALL,))


def _list_releases(fleet: Fleet, groups: Sequence[Group]) -> Iterator[Step]:
    """List the releases of AMIs that the file pins, and that are older than those of this release."""
    newest_releases: Mapping[tuple[Orchestrator, eks.Os], str] = {
        ("eks", "al2023"): eks.AL2023,
        ("eks", "bottlerocket"): eks.BOTTLEROCKET,
        ("ecs", "al2023"): ecs.AL2023,
    }
    for (orchestrator, os), newest in newest_releases.items():
        release = machine_images.find_release(fleet, orchestrator, os)
        if orchestrator in fleet.orchestrators and _parse_version(release.name) < _parse_version(newest):
            own = [group for group in groups if group.os == os]
            yield Step(
                f"AMI {os} on {orchestrator.upper()}",
                (f"{release.name} -> {newest}",),
                _describe_drain(orchestrator, own),
                RELEASE_FIRST,
                _list_node_commands(orchestrator, own),
                (release.key_path, newest),
            )


def _list_kubernetes(fleet: Fleet, groups: Sequence[Group], installed: Installed | None) -> Iterator[Step]:
    """List the steps of the cluster: what stands behind its version, then one minor version after another."""
    if not fleet.creates_eks:
        return
    running = (installed.kubernetes if installed else None) or fleet.eks.version
    drains = _describe_drain("eks", groups)
    if installed and installed.kubernetes:
        behind = list(_compare_cluster(fleet, installed, running))
        if _parse_version(fleet.eks.version) < _parse_version(running):
            behind.insert(0, f"the fleet file {fleet.eks.version} -> {running}, as the control plane is")
        if behind:
            commands = _list_node_commands("eks", groups)
            yield Step(
                f"Kubernetes {running}", tuple(behind), drains, NODES_FIRST, commands, _choose_version(fleet, running)
            )
    for before, after in _list_minors(running):
        changes = (f"control plane {before} -> {after}", *_compare_pins(fleet, before, after), f"nodes -> {after}")
        # Karpenter takes the same release for the control plane's new version by itself.
        commands = (_APPLY.format("eks"),)
        yield Step(f"Kubernetes {after}", changes, drains, ONE_MINOR, commands, _choose_version(fleet, after))


def is_one_step(before: str, after: str) -> bool:
    """Return whether two versions of Kubernetes are neighbours."""
    (major, minor), (other_major, other_minor) = _parse_version(before), _parse_version(after)
    return major == other_major and abs(minor - other_minor) == 1


def _choose_version(fleet: Fleet, version: str) -> tuple[tuple[str, str], str] | None:
    """Return the version to write; None where the file has it: the default would move with the next release."""
    is_written = fleet.eks.version == version and "version" in fleet.eks.model_fields_set
    return None if is_written else (("eks", "version"), f'"{version}"')


def _list_minors(running: str) -> Iterator[tuple[str, str]]:
    """Yield each minor version with the next, up to the newest that is pinned."""
    pinned = sorted(eks.END_OF_STANDARD_SUPPORT, key=_parse_version)
    major, minor = _parse_version(running)
    while (major, minor) < _parse_version(pinned[-1]):
        before, after = f"{major}.{minor}", f"{major}.{minor + 1}"
        if after not in pinned:
            raise InputError(
                f"Kubernetes {before}: this release pins no add-ons for {after}, and no version may be skipped. "
                f"Fix: upgrade to {after} with an earlier release first."
            )
        yield before, after
        minor += 1


def _compare_cluster(fleet: Fleet, installed: Installed, running: str) -> Iterator[str]:
    """Yield what of a cluster is not as pinned for the version that its control plane has."""
    for add_on in list_eks_add_ons(fleet):
        pinned = add_on.versions.get(running)
        version = installed.add_ons.get(add_on.name)
        if installed.add_ons and pinned and version != pinned:
            yield f"{add_on.name} {version or 'none'} -> {pinned}"
    for name, count in installed.amis.items():
        node = parse_ami(name)
        if node is None or node.kubernetes is None:
            continue
        release = machine_images.find_release(fleet, "eks", node.os).name
        if (node.kubernetes, node.release) != (running, release):
            skew = _parse_version(running)[1] - _parse_version(node.kubernetes)[1]
            beyond = f": {skew} minor versions behind, {MAX_KUBELET_SKEW} are allowed" * (skew > MAX_KUBELET_SKEW)
            yield f"{count} x {node.os} {node.kubernetes} {node.release} -> {running} {release}{beyond}"


def _compare_pins(fleet: Fleet, before: str, after: str) -> Iterator[str]:
    for add_on in list_eks_add_ons(fleet):
        old, new = add_on.versions.get(before), add_on.versions.get(after)
        if old != new:
            yield f"{add_on.name} {old or 'other'} -> {new}"


def _list_ecs(fleet: Fleet, groups: Sequence[Group], installed: Installed) -> Iterator[Step]:
    """List the instances of ECS whose AMI is not the file's: an apply that was not made, or a refresh that stopped."""
    if "ecs" not in fleet.orchestrators:
        return
    release = machine_images.find_release(fleet, "ecs", "al2023").name
    changes = tuple(
        f"{count} x al2023 {node.release} -> {release}"
        for name, count in installed.amis.items()
        if (node := parse_ami(name)) and node.kubernetes is None and node.release != release
    )
    if changes:
        drains = _describe_drain("ecs", groups)
        yield Step("Container instances", changes, drains, TEMPLATE_CHANGED, _list_node_commands("ecs", groups))


def _list_images(installed: Installed) -> Iterator[Step]:
    """List the images of other projects that run with another tag than the catalog's."""
    changes = tuple(sorted(_compare_images(installed.images, images.load())))
    if changes:
        drains = "the replicas of each deployment, by its own rollout"
        yield Step("Deployments", changes, drains, IMAGES_LAST, ("blueprint deploy DIR, for each",))


def _compare_images(running: frozenset[str], catalog: Mapping[str, Image]) -> Iterator[str]:
    for reference in running:
        repository, _, tag = reference.partition("@")[0].rpartition(":")
        tags = {
            image.rpartition(":")[2]: image.rpartition(":")[0]
            for image in catalog
            if f"/{repository}".endswith(f"/{image.rpartition(':')[0]}")
        }
        if tags and tag not in tags:
            yield f"{next(iter(tags.values()))} {tag} -> {' or '.join(tags)}"


def _list_node_commands(orchestrator: Orchestrator, groups: Sequence[Group]) -> tuple[str, ...]:
    """Return what gives nodes another AMI: Terraform has that of each group, but Karpenter's come with the charts."""
    by_karpenter = any(group.kind == "karpenter" and group.orchestrator == orchestrator for group in groups)
    return (_APPLY.format(orchestrator), *((_INSTALL,) if by_karpenter else ()))


PACES: Mapping[str, str] = {
    "ecs": "a tenth of a group at a time, at least one",
    "eks": "one of a group at a time",
}
"""How fast a changed launch template reaches what runs: so the stacks have it."""


def _describe_drain(orchestrator: Orchestrator, groups: Sequence[Group]) -> str:
    """Describe which nodes go, and how many at a time; the numbers are those of the stacks and of the NodePools."""
    own = [group for group in groups if group.orchestrator == orchestrator]
    pools = ", ".join(dict.fromkeys(group.pool for group in own))
    if orchestrator == "ecs":
        return f"every instance of {pools}: {PACES[orchestrator]}"
    nodes = f"every node of system and of each node group, {PACES[orchestrator]}"
    if any(group.kind == "karpenter" for group in own):
        nodes += "; Karpenter's nodes one of a NodePool at a time"
    return f"{nodes} ({pools})"


class NodeImage(NamedTuple):
    """What the name of one of AWS's AMIs says."""

    os: eks.Os
    release: str
    kubernetes: str | None
    """None on ECS."""


_AMI_NAMES: tuple[tuple[eks.Os, re.Pattern[str]], ...] = (
    ("al2023", re.compile(r"amazon-eks-node-al2023-.+-(?P<kubernetes>1\.\d+)-(?P<release>v\d{8})")),
    ("bottlerocket", re.compile(r"bottlerocket-aws-k8s-(?P<kubernetes>1\.\d+)(?:-.+)?-v(?P<release>[\d.]+)-[0-9a-f]+")),
    ("al2023", re.compile(r"al2023-ami-ecs-(?:gpu-|neuron-)?hvm-(?P<release>2023\.0\.\d{8})-.+")),
)
"""Sources: as of the parameters that name them, `eks.format_image_parameter` and `ecs.format_image_parameter`; names of
Bottlerocket as in its SSM parameters' images, github.com/bottlerocket-os/bottlerocket, QUICKSTART-EKS.md, 2026-11."""


def parse_ami(name: str) -> NodeImage | None:
    """Return what an AMI's name says; None for an AMI of the user's own."""
    for os, pattern in _AMI_NAMES:
        if match := pattern.fullmatch(name):
            return NodeImage(os, match["release"], match.groupdict().get("kubernetes"))
    return None


def _parse_version(version: str) -> tuple[int, ...]:
    """Return a version's numbers, by which it is compared."""
    return tuple(int(number) for number in re.findall(r"\d+", version))
