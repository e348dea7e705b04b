"""What a template rendered, held against the chart's schema and against the deployment, before Helm sees it.

The chart lets more through than a deployment can bear: an engine listens where its command says, whatever values do.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from llm_serving import paths
from llm_serving.services.deployment import Deployment
from llm_serving.services.service import Service
from llm_serving.settings import yaml_source
from llm_serving.settings.errors import Mistake, quote_value
from llm_serving.settings.yaml_source import KeyPath, YamlFile

_RENDERED = Path("eks.yaml")


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
        yield from _compare_values(file, deployment)


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
            properties, patterns = (error.schema.get(key, {}) for key in ("properties", "patternProperties"))
            for key in error.instance.keys() - properties.keys():
                if not any(re.search(pattern, key) for pattern in patterns):
                    reason = f"charts/{chart} has no such value"
                    yield _build_mistake(file, (*key_path, key), reason, f"remove it, or take its name from {page}")
        else:
            yield _build_mistake(file, key_path, error.message, f"write what {page} says")


def _compare_values(file: YamlFile, deployment: Deployment) -> Iterator[Mistake]:
    if file.data.get("fullnameOverride"):
        reason = "deploy, status and logs find objects by the release's name"
        yield _build_mistake(file, ("fullnameOverride",), reason, "remove it, and choose `name` in blueprint.yaml")
    for service in deployment.services:
        for key_path, expected, reason, fix in _list_rules(service, file.data):
            if _find_value(file.data, key_path, deployment.chart) != expected:
                yield _build_mistake(file, key_path, reason, fix)


def _list_rules(service: Service, values: Mapping[str, Any]) -> Iterator[tuple[KeyPath, Any, str, str]]:
    """Yield what a service decides: where it is, what it must be, why, and the fix."""
    at: KeyPath
    if has_roles := "roles" in values:  # charts/inference; others have a list
        at = ("roles", service.name)
        if service.name not in values["roles"]:
            yield at, object(), "it is missing", "render a role for each of deployment.services"
            return
    else:
        names = [entry.get("name") for entry in values.get("services", [])]
        if service.name not in names:
            yield ("services",), object(), f"{service.name} is missing", "render each of deployment.services"
            return
        at = ("services", names.index(service.name))
    reason = f"the command listens on {service.port}, and probes and clients would ask elsewhere"
    yield (*at, "port"), service.port, reason, "write {{ service.port }}"
    port_names = ", ".join(f"{name} {port}" for name, port in service.ports.items()) or "none"
    further = f"the command's further ports: {port_names}"
    yield (*at, "ports"), dict(service.ports), further, "write {{ service.ports | yaml }}"
    if has_roles:
        yield (*at, "nodes"), service.nodes, f"a replica has {service.nodes}", "write {{ service.nodes }}"
        count, key_path = service.resources.accelerators, (*at, "resources", "accelerator", "count")
        yield key_path, count, f"the command uses {count}", "write {{ service.resources.accelerators }}"


def _find_value(values: Mapping[str, Any], key_path: KeyPath, chart: str) -> Any:
    """Return a value, or its default in the chart."""
    written_value = yaml_source.get_value(values, key_path)
    if written_value is not None or key_path[0] != "roles" or chart != "inference":
        return written_value
    kind = yaml_source.get_value(values, (*key_path[:2], "kind"))
    return yaml_source.get_value(_read_defaults(), (kind, *key_path[2:]))


@functools.cache
def _read_defaults() -> Mapping[str, Any]:
    text = (paths.CHARTS / "inference" / "values.yaml").read_text(encoding="utf-8")
    defaults: Mapping[str, Any] = yaml.safe_load(text)["defaults"]
    return defaults


def _build_mistake(file: YamlFile, key_path: KeyPath, reason: str, fix: str) -> Mistake:
    written_path = key_path
    while written_path not in file.positions:
        written_path = written_path[:-1]
    value = yaml_source.get_value(file.data, key_path)
    quoted_value = quote_value(value) if isinstance(value, str | int | float) else ""
    position, field = file.positions[written_path], yaml_source.format_key_path(key_path)
    return Mistake(_RENDERED, position.key_line, position.key_column, field, quoted_value, reason.rstrip("."), fix)
