"""What a template rendered, held against the chart's schema and against the deployment, before Helm sees it.

The chart lets more through than a deployment can bear: an engine listens where its command says, whatever values do.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from llm_serving import paths
from llm_serving.services.deployment import Deployment
from llm_serving.services.service import Service
from llm_serving.settings import yaml_source
from llm_serving.settings.errors import Mistake, quote_value
from llm_serving.settings.yaml_source import KeyPath, YamlFile

_RENDERED = Path("eks.yaml")


class _Rule(NamedTuple):
    """A value that the deployment decides."""

    key_path: KeyPath
    expected: Any
    reason: str
    fix: str


def find_mistakes(deployment: Deployment, text: str) -> Iterator[Mistake]:
    """Yield what is wrong with the rendered values, each at its line of `text`.

    Raises:
        InputError: it is no YAML at all.
    """
    file = yaml_source.parse(_RENDERED, text)
    # The chart reads null as an absent value, which settings refuse.
    nulls = {yaml_source.format_key_path(key_path) for key_path in file.rejected}
    yield from (mistake for mistake in file.mistakes if mistake.field not in nulls)
    errors = list(_list_schema_errors(file, deployment.chart))
    yield from errors
    if not errors:
        yield from _compare(file, deployment)


def load_schema(chart: str) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads((paths.CHARTS / chart / "values.schema.json").read_text(encoding="utf-8"))
    return schema


def _list_schema_errors(file: YamlFile, chart: str) -> Iterator[Mistake]:
    import jsonschema  # takes longer to import than most commands take to run

    page = f"charts/{chart}/VALUES.md"
    schema = load_schema(chart)
    validator = jsonschema.validators.validator_for(schema)(schema)
    for error in sorted(validator.iter_errors(file.data), key=lambda error: list(map(str, error.absolute_path))):
        key_path: KeyPath = tuple(error.absolute_path)
        if error.validator == "additionalProperties" and isinstance(error.instance, dict):
            known = error.schema.get("properties", {})
            for key in error.instance.keys() - known.keys():
                reason = f"charts/{chart} has no such value"
                yield _build_mistake(file, (*key_path, key), reason, f"remove it, or take its name from {page}")
        else:
            yield _build_mistake(file, key_path, error.message, f"write what {page} says")


def _compare(file: YamlFile, deployment: Deployment) -> Iterator[Mistake]:
    if file.data.get("fullnameOverride"):
        reason = "deploy, status and logs find objects by the release's name"
        yield _build_mistake(file, ("fullnameOverride",), reason, "remove it, and choose `name` in blueprint.yaml")
    list_rules = _list_role_rules if "roles" in file.data else _list_service_rules
    for service in deployment.services:
        for rule in list_rules(service, file.data):
            if _find(file.data, rule.key_path, deployment.chart) != rule.expected:
                yield _build_mistake(file, rule.key_path, rule.reason, rule.fix)


def _list_role_rules(service: Service, values: Mapping[str, Any]) -> Iterator[_Rule]:
    """Yield what a service decides of its role in charts/inference."""
    at = ("roles", service.name)
    if service.name not in values["roles"]:
        yield _Rule(at, object(), "it is missing", "render a role for each of deployment.services")
        return
    yield from _list_port_rules(at, service)
    yield _Rule((*at, "nodes"), service.nodes, f"a replica has {service.nodes}", "write {{ service.nodes }}")
    count, key_path = service.resources.accelerators, (*at, "resources", "accelerator", "count")
    yield _Rule(key_path, count, f"the command uses {count}", "write {{ service.resources.accelerators }}")


def _list_service_rules(service: Service, values: Mapping[str, Any]) -> Iterator[_Rule]:
    """Yield what a service decides of its entry in charts/batch."""
    names = [entry.get("name") for entry in values.get("services", [])]
    if service.name not in names:
        reason = f"{service.name} is missing"
        yield _Rule(("services",), object(), reason, "render each of deployment.services")
        return
    yield from _list_port_rules(("services", names.index(service.name)), service)


def _list_port_rules(at: KeyPath, service: Service) -> Iterator[_Rule]:
    reason = f"the command listens on {service.port}, and probes and clients would ask elsewhere"
    yield _Rule((*at, "port"), service.port, reason, "write {{ service.port }}")
    listed = ", ".join(f"{name} {port}" for name, port in service.ports.items()) or "none"
    yield _Rule(
        (*at, "ports"),
        dict(service.ports),
        f"the command's further ports: {listed}",
        "write {{ service.ports | yaml }}",
    )


def _find(values: Mapping[str, Any], key_path: KeyPath, chart: str) -> Any:
    """Return a value, or its default in the chart."""
    written = yaml_source.get_value(values, key_path)
    if written is not None or key_path[0] != "roles" or chart != "inference":
        return written
    kind = yaml_source.get_value(values, (*key_path[:2], "kind"))
    return yaml_source.get_value(_read_defaults(), (kind, *key_path[2:]))


@functools.cache
def _read_defaults() -> Mapping[str, Any]:
    text = (paths.CHARTS / "inference" / "values.yaml").read_text(encoding="utf-8")
    defaults: Mapping[str, Any] = yaml.safe_load(text)["defaults"]
    return defaults


def _build_mistake(file: YamlFile, key_path: KeyPath, reason: str, fix: str) -> Mistake:
    known = key_path
    while known not in file.positions:
        known = known[:-1]
    value = yaml_source.get_value(file.data, key_path)
    shown = quote_value(value) if isinstance(value, str | int | float) else ""
    position, field = file.positions[known], yaml_source.format_key_path(key_path)
    return Mistake(_RENDERED, position.key_line, position.key_column, field, shown, reason.rstrip("."), fix)
