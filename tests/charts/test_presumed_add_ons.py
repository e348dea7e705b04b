"""Custom kinds, classes and devices that rendered objects take for granted come with the fleet's add-ons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import yaml

from llm_serving import paths
from llm_serving.fleet import add_ons
from llm_serving.fleet.groups import resolve_all
from llm_serving.fleet.loading import load_fleet
from llm_serving.fleet.model import Fleet
from llm_serving.operations import add_ons as installer
from llm_serving.targets.matrix import Cell
from tests.charts import objects, platform_charts, test_patterns
from tests.charts.conftest import Render
from tests.charts.test_batch import CHART as BATCH_CHART
from tests.charts.test_batch import Values, values  # noqa: F401, a fixture
from tests.charts.test_cluster import EXTRA_VALUES
from tests.charts.test_presets import NAMES, Preset, each_preset
from tests.infra.batch.conftest import FLEET as BATCH_FLEET

BUILT_IN_GROUPS = {"", "apps", "batch", "networking.k8s.io", "policy", "rbac.authorization.k8s.io", "storage.k8s.io"}
"""API groups of every cluster."""

ROWS = {
    # Groups of custom kinds, of the CustomResourceDefinitions in each chart or manifest at its pinned version.
    "gateway.k8s.aws": "aws-load-balancer-controller",
    "elbv2.k8s.aws": "aws-load-balancer-controller",
    "gateway.networking.k8s.io": "gateway-api",
    "inference.networking.k8s.io": "gateway-api-inference-extension",
    "karpenter.k8s.aws": "karpenter",
    "karpenter.sh": "karpenter",
    "keda.sh": "keda",
    "kueue.x-k8s.io": "kueue",
    "leaderworkerset.x-k8s.io": "lws",
    "monitoring.coreos.com": "kube-prometheus-stack",
    "ray.io": "kuberay-operator",
    # Classes and labels, which an object names.
    "ingressClassName: alb": "aws-load-balancer-controller",
    "gatewayClassName: alb": "gateway-classes",
    "storageClassName: gp3": "storage-class",
    "kueue.x-k8s.io/queue-name": "queues",
    # Devices of pods; Bottlerocket has NVIDIA's plugin itself.
    "aws.amazon.com/neuron": "neuron",
    "nvidia.com/gpu": "nvidia-device-plugin",
    "vpc.amazonaws.com/efa": "aws-efa-k8s-device-plugin",
}
"""The row of charts/platform.yaml that brings what an object takes for granted."""

BROUGHT_BY_USERS = {"llm-d.ai", "nvidia.com"}
"""Groups of kinds that README.md or charts/inference/README.md has the commands for, and no row brings."""

INGRESS = {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "spec": {"ingressClassName": "alb"}}
QUEUED_POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"kueue.x-k8s.io/queue-name": "general"}}}

CLASS_KEYS = (
    *("gatewayClassName", "ingressClassName", "loadBalancerClass", "priorityClassName", "runtimeClassName"),
    *("schedulerName", "storageClassName", "storageClass"),
)


def list_presumed(manifest: Any) -> Iterator[str]:
    """Yield the custom kinds' groups, classes and devices that an object names, as `ROWS` has them."""
    if isinstance(manifest, Mapping):
        if isinstance(manifest.get("apiVersion"), str) and "kind" in manifest:
            group = manifest["apiVersion"].rpartition("/")[0]
            yield from {group} - BUILT_IN_GROUPS - BROUGHT_BY_USERS
        for key, value in manifest.items():
            if key in CLASS_KEYS and value:
                yield f"{key}: {value}"
            elif key in ROWS:
                yield key
            yield from list_presumed(value)
    elif isinstance(manifest, list):
        for item in manifest:
            yield from list_presumed(item)


def find_missing(manifests: Sequence[Mapping[str, Any]], fleet: Fleet) -> list[str]:
    """Return what objects take for granted and the fleet's cluster lacks, with the row that would bring it."""
    rows = {selected.add_on.name for selected in add_ons.select_add_ons(fleet)}
    if any(group.os == "bottlerocket" for group in resolve_all(fleet)):
        rows.add("nvidia-device-plugin")
    presumed = sorted({name for manifest in manifests for name in list_presumed(manifest)})
    return [f"{name}: {ROWS.get(name, 'no row')}" for name in presumed if ROWS.get(name) not in rows]


def load_example_fleet(cell: Cell) -> Fleet:
    return load_fleet(paths.EXAMPLE_FLEETS / f"{cell.fleet}.yaml").value


@test_patterns.each_cell
def test_a_pattern_presumes_nothing_that_its_fleet_does_not_install(render_chart: Render, cell: Cell) -> None:
    assert find_missing(test_patterns.render_objects(render_chart, cell), load_example_fleet(cell)) == []


@each_preset
def test_a_preset_presumes_nothing_that_the_fleet_of_all_add_ons_does_not_install(
    render_chart: Render, preset: Preset, name: str
) -> None:
    manifests = render_chart({**preset(name), **EXTRA_VALUES})
    assert find_missing(manifests, platform_charts.FLEET) == []


@pytest.mark.parametrize("shape", ["pods", "pods-outside"])
def test_a_batch_presumes_nothing_that_its_fleet_does_not_install(
    render_chart: Render,
    values: dict[str, Values],  # noqa: F811
    shape: str,
) -> None:
    fleet = Fleet.model_validate(yaml.safe_load(BATCH_FLEET))
    assert find_missing(render_chart(values[shape], BATCH_CHART), fleet) == []


@pytest.mark.parametrize(
    ("row", "presumed"),
    [
        ("aws-efa-k8s-device-plugin", "vpc.amazonaws.com/efa"),
        ("aws-load-balancer-controller", "ingressClassName: alb"),
        ("gateway-api", "gateway.networking.k8s.io"),
        ("keda", "keda.sh"),
        ("kube-prometheus-stack", "monitoring.coreos.com"),
        ("lws", "leaderworkerset.x-k8s.io"),
        ("neuron", "aws.amazon.com/neuron"),
        ("queues", "kueue.x-k8s.io/queue-name"),
    ],
)
def test_without_a_row_the_objects_lack_what_it_brings(
    render_chart: Render, preset: Preset, monkeypatch: pytest.MonkeyPatch, row: str, presumed: str
) -> None:
    manifests = [item for name in NAMES for item in render_chart({**preset(name), **EXTRA_VALUES})]
    manifests += [INGRESS, QUEUED_POD]
    assert find_missing(manifests, platform_charts.FLEET) == []
    others = [item for item in add_ons.load_add_ons() if item.name != row]
    monkeypatch.setattr(add_ons, "load_add_ons", lambda: others)
    assert find_missing(manifests, platform_charts.FLEET) == [f"{presumed}: {row}"]


def test_what_no_row_brings_is_missing() -> None:
    unknown = {"apiVersion": "example.com/v1", "kind": "Other", "spec": {"priorityClassName": "urgent"}}
    assert find_missing([unknown], platform_charts.FLEET) == [
        "example.com: no row",
        "priorityClassName: urgent: no row",
    ]


def test_the_platform_s_own_manifests_come_after_what_brings_their_kinds() -> None:
    before: set[str] = set()
    own_kinds = set()
    for selected in add_ons.select_add_ons(platform_charts.FLEET):
        row = selected.add_on
        for manifest in load_own_manifests(row.manifest or ""):
            kinds = {found for found in list_presumed(manifest) if found in ROWS}
            own_kinds |= kinds
            assert {ROWS[kind] for kind in kinds} <= before, f"{row.name}: {manifest['kind']}"
        before.add(row.name)
    assert {"gateway.networking.k8s.io", "karpenter.sh", "kueue.x-k8s.io"} <= own_kinds


def load_own_manifests(manifest: str) -> list[dict[str, Any]]:
    """Return the objects of a row of the platform that this repository writes."""
    if manifest in installer.BUILDERS:
        return installer.BUILDERS[manifest](platform_charts.FLEET)
    if not manifest or manifest.startswith("https://"):
        return []
    return list(yaml.safe_load_all((add_ons.FILE.parent / manifest).read_text()))


def test_every_custom_kind_of_a_pattern_is_one_that_the_tests_api_server_checks(render_chart: Render) -> None:
    known = {definition["spec"]["group"] for definition in objects.read_definitions(objects.CRDS)} | BUILT_IN_GROUPS
    manifests = [item for cell in test_patterns.CELLS for item in test_patterns.render_objects(render_chart, cell)]
    assert {item["apiVersion"].rpartition("/")[0] for item in manifests} <= known


def test_the_kind_by_which_a_row_is_found_is_one_that_it_brings() -> None:
    added = {row.name: row.adds for row in add_ons.load_add_ons() if row.adds}
    assert added == {ROWS[kind.partition("/")[0]]: kind for kind in added.values()}
    served = {
        f"{spec['group']}/{version['name']} {spec['names']['kind']}"
        for spec in (definition["spec"] for definition in objects.read_definitions(objects.CRDS))
        for version in spec["versions"]
    }
    without_definition = {"aws-load-balancer-controller", "kueue"}  # whose kinds no chart makes
    assert {name for name, kind in added.items() if kind not in served} == without_definition
