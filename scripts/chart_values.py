"""Write what follows from the charts' values: the tables in charts/*/VALUES.md, and the schema of charts/batch.

.venv/bin/python -m scripts.chart_values
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from llm_serving import paths
from llm_serving.services.service import Service
from llm_serving.settings import schema as settings_schema

CHARTS = ("inference", "batch", "streaming")

_LONGEST_DEFAULT = 60
"""Characters of a default that the table shows."""

_REQUIRED = ["image", "replicas", "resources", "stop"]

STACK_KEYS = ("role", "secrets", "in_network", "path", "body")
"""Keys of a service in charts/batch that only the stack reads, from the same file."""

_FIXED = ("ports", "unavailable", "device", "accelerators", "efa", "shared_memory_bytes", "pool", "instance_types",
          "zones", "gives_way", "is_root")  # fmt: skip
"""Keys that every rendered service has, whatever its kind: charts/batch takes their defaults only."""

_DESCRIPTIONS = {
    "kind": "The blueprint's kind.",
    "name": "The blueprint's name, after which the stack names service accounts.",
    "fleet": "The fleet's name.",
    "services": "A Deployment for each, as `blueprint render` writes them.",
    "stack": "Data of the stack KIND-NAME, of which the chart reads load_balancer.",
}


def build_batch_schema() -> dict[str, Any]:
    """Build the schema of charts/batch: a rendered file (`Rendered`), of which the defaults have nothing."""
    templates = "".join(file.read_text() for file in (paths.CHARTS / "batch" / "templates").rglob("*.*"))
    service = settings_schema.build_tree(Service)
    _remove_unread(service, templates)
    inference = json.loads((paths.CHARTS / "inference" / "values.schema.json").read_text())
    service["properties"]["name"] = inference["$defs"]["named"]["patternProperties"]["^name$"]
    service["required"] += _REQUIRED
    properties: dict[str, Any] = {
        name: {"type": "string", "description": _DESCRIPTIONS[name]} for name in ("kind", "name", "fleet")
    }
    services = {"description": _DESCRIPTIONS["services"], "type": "array", "items": service}
    properties |= {"services": services, "stack": {"description": _DESCRIPTIONS["stack"], "type": "object"}}
    properties |= {name: inference["properties"][name] for name in ("fullnameOverride", "global")}
    head = {"$schema": settings_schema.DRAFT, "title": "Values of the chart batch", "type": "object"}
    return {**head, "additionalProperties": False, "properties": properties}


def _remove_unread(node: dict[str, Any], templates: str) -> None:
    """Keep the properties that the templates read or a rendered file has; the chart would ignore any other."""
    for name, child in list(node.get("properties", {}).items()):
        if name in _FIXED:
            node["properties"][name] = {**child, **_fix(child)}
        elif re.search(rf"\.{name}\b", templates):
            for part in (child, child.get("additionalProperties")):
                if isinstance(part, dict):
                    _remove_unread(part, templates)
        elif name not in STACK_KEYS:
            del node["properties"][name]


def _fix(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return what leaves a property its default only."""
    limits = {"array": {"maxItems": 0}, "object": {"maxProperties": 0}}
    return limits[node["type"]] if node["type"] in limits else {"const": node["default"]}


def build_table(chart: str) -> str:
    """Build VALUES.md of a chart: every value with its default and the schema's sentence."""
    folder = paths.CHARTS / chart
    values = yaml.safe_load((folder / "values.yaml").read_text())
    schema = json.loads((folder / "values.schema.json").read_text())
    rows = list(_walk(schema, schema, values, ""))
    command = "`.venv/bin/python -m scripts.chart_values`"
    lines = [
        f"# Values of {chart}",
        "",
        f"[values.yaml](values.yaml) has more on each. {command} writes this page from it and its schema.",
        "",
        "| Key | Default | Meaning |",
        "|---|---|---|",
        *(f"| `{key}` | {default} | {meaning} |" for key, default, meaning in rows),
    ]
    return "\n".join(lines) + "\n"


def _walk(
    schema: Mapping[str, Any], root: Mapping[str, Any], values: Any, prefix: str
) -> Iterator[tuple[str, str, str]]:
    """Yield key, default and meaning of each property, depth first; what `defaults` has stands for all roles."""
    for name, written in schema.get("properties", {}).items():
        node = _resolve(written, root)
        key, default = f"{prefix}{name}", values.get(name) if isinstance(values, Mapping) else None
        if name == "global":
            continue
        yield key, _format_default(default), node.get("description", "").replace("|", "\\|")
        if "properties" in node and key != "defaults.router":
            yield from _walk(node, root, default, f"{key}.")


def _resolve(node: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    reference = node.get("$ref", "").rpartition("/")[2]
    return {**(root["$defs"][reference] if reference else {}), **node}


def _format_default(value: Any) -> str:
    """Format a default; one that is a tree is in the rows below."""
    if value is None or (isinstance(value, Mapping) and value):
        return ""
    text = json.dumps(value, ensure_ascii=False).replace("|", "\\|")
    return f"`{text}`" if len(text) <= _LONGEST_DEFAULT else "see values.yaml"


def main() -> None:
    schema = json.dumps(build_batch_schema(), indent=2, ensure_ascii=False) + "\n"
    (paths.CHARTS / "batch" / "values.schema.json").write_text(schema)
    for chart in CHARTS:
        (paths.CHARTS / chart / "VALUES.md").write_text(build_table(chart))


if __name__ == "__main__":
    main()
