"""Facts of the platform's charts: the names that their values have, and the pods that they become.

The charts are their makers', and are not kept here: `python -m tests.charts.platform_charts FOLDER` reads them unpacked
from FOLDER/NAME (`helm pull --untar`), renders each with the values of the fleet below, and writes
`platform/NAME.yaml`. Write it again where a pin or a value changes, and name its source.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from llm_serving.fleet import add_ons
from llm_serving.fleet.add_ons import SelectedAddOn
from llm_serving.fleet.model import Fleet
from llm_serving.settings import own_yaml
from tests import go_programs

FOLDER = Path(__file__).with_name("platform")
_KUBERNETES = "1.35.0"

FLEET = Fleet.model_validate(
    {
        "name": "demo",
        "region": "us-west-2",
        "zones": ("us-west-2a", "us-west-2c"),
        "pools": {
            "general": {"types": "g6e.2xlarge", "size": "0..4", "taints": ("team=ads:NoExecute",)},
            "rocket": {"types": "g6e.2xlarge", "size": "0..4", "os": "bottlerocket"},
            "spanning": {"types": "p5en.48xlarge", "zones": ("us-west-2c",), "size": "0..2", "efa": True},
            "neuron": {"types": "inf2.8xlarge", "size": "0..2", "taints": ("team=ads:NoSchedule",)},
            "routers": {"types": "m8g.2xlarge", "size": "1..2"},
        },
        "logs": {"to": "cloudwatch"},
        "alarms_to": "arn:aws:sns:us-west-2:123456789012:on-call",
        "add_ons": {"observability": True, "gateway": True, "schedulers": True, "operators": True},
    }
)
"""A fleet that needs every chart."""

Facts = Mapping[str, Any]


def select_charts() -> list[SelectedAddOn]:
    """The charts of the fleet, with their values filled in."""
    return [selected for selected in add_ons.select_add_ons(FLEET) if selected.add_on.chart]


def load_facts() -> dict[str, Facts]:
    """Facts by the chart's row."""
    return {file.stem: own_yaml.read(file) for file in sorted(FOLDER.glob("*.yaml"))}


def find_unknown_names(values: Mapping[str, Any], names: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the paths of values that the chart has no name for.

    Args:
        names: by path, the names that the chart has there; a path that is not in it takes any.
    """
    if path not in names:
        return
    for name, value in values.items():
        full_path = f"{path}.{name}" if path else name
        if name not in names[path]:
            yield full_path
        elif isinstance(value, Mapping):
            yield from find_unknown_names(value, names, full_path)


_IN_COMMENTS = (
    "customMetrics", "filter.extraFilters", "input.extraInputs", "cloudWatchLogs.extraOutputs", "s3.extraOutputs",
    "opensearch.extraOutputs", "priorityClassName",
)  # fmt: skip
"""Values that a chart's templates read, and its own file of values has in a comment alone."""

_FREE = ("extraArgs", "nodeSelector", "affinity")
"""Values that a chart hands on as they are, whatever names its own defaults have there."""


def read_names(values: Any, chart_values: Any, path: str = "") -> dict[str, list[str]]:
    """The names that a chart has at each level that `values` goes through; a level without any is free."""
    if not isinstance(values, Mapping) or not isinstance(chart_values, Mapping) or not chart_values:
        return {}
    commented = [name for above, _, name in (entry.rpartition(".") for entry in _IN_COMMENTS) if above == path]
    names = {path: sorted({*chart_values, *(name for name in commented if path or name in values)})}
    for name, value in values.items():
        if name not in _FREE:
            names |= read_names(value, chart_values.get(name), f"{path}.{name}" if path else name)
    return names


def render(selected: SelectedAddOn, chart: Path) -> list[dict[str, Any]]:
    """The objects that the chart becomes, without those of its hooks."""
    helm = go_programs.find_or_build(go_programs.HELM)
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(dict(selected.values), file)
        file.flush()
        command = [helm, "template", selected.add_on.name, str(chart), "--namespace", str(selected.add_on.namespace)]
        text = subprocess.check_output([*command, "--values", file.name, "--kube-version", _KUBERNETES], text=True)
    objects = [item for item in yaml.load_all(text, yaml.CSafeLoader) if item]
    return [item for item in objects if "helm.sh/hook" not in (item["metadata"].get("annotations") or {})]


def describe_pods(objects: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The pods: where they may run, and their images."""
    kinds = ("Deployment", "DaemonSet", "StatefulSet", "Job")
    return [_describe_pod(item) for item in objects if item["kind"] in kinds]


def guards_pods(objects: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a webhook of the chart must answer before a pod is created."""
    return any(
        webhook["failurePolicy"] == "Fail" and any("pods" in rule["resources"] for rule in webhook["rules"])
        for item in objects
        for webhook in item.get("webhooks", [])
    )


def _describe_pod(item: Mapping[str, Any]) -> dict[str, Any]:
    spec = item["spec"]["template"]["spec"]
    required = (
        (spec.get("affinity") or {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    )
    facts = {
        "kind": item["kind"],
        "name": item["metadata"]["name"],
        "replicas": item["spec"].get("replicas", 1) if item["kind"] == "Deployment" else None,
        "node_selector": spec.get("nodeSelector") or {},
        "node_affinity": (required or {}).get("nodeSelectorTerms", []),
        "tolerations": spec.get("tolerations") or [],
        "images": sorted({container["image"] for container in spec["containers"]}),
    }
    return {name: value for name, value in facts.items() if value}


def _read_values(chart: Path) -> dict[str, Any]:
    """A chart's values, with those of the charts in it."""
    values: dict[str, Any] = own_yaml.read(chart / "values.yaml")
    for file in chart.glob("charts/*/values.yaml"):
        name = file.parent.name
        values[name] = {**(own_yaml.read(file) or {}), **values.get(name, {})}
    return values


def main(charts: Path) -> int:
    """Write the facts of each chart that FOLDER has; its source and the architectures of its images stay."""
    for selected in select_charts():
        name = selected.add_on.name
        file, chart = FOLDER / f"{name}.yaml", charts / name
        if not chart.is_dir():
            print(f"{name}: not in {charts}")
            continue
        objects = render(selected, chart)
        previous = own_yaml.read(file) if file.exists() else {}
        facts = {
            "chart": selected.add_on.chart,
            "version": selected.add_on.version,
            "source": previous.get("source", "FILL IN"),
            "architectures": previous.get("architectures", {"of": [], "source": "FILL IN"}),
            "names": read_names(selected.values, _read_values(chart)),
            "values": dict(selected.values),
            "guards_pods": guards_pods(objects),
            "pods": describe_pods(objects),
        }
        file.write_text(yaml.safe_dump(facts, sort_keys=False, width=116, default_flow_style=None))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
