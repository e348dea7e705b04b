"""Dashboards of Grafana for a deployment on EKS: `dashboards.yaml` with the names of the signals filled in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from llm_serving.catalog import signals
from llm_serving.kinds.serving import alerts, price
from llm_serving.kinds.serving.deployment import PREFILL, ServingDeployment
from llm_serving.settings import own_yaml

FILE = Path(__file__).with_suffix(".yaml")

SCHEMA_VERSION = 41
"""Of dashboards in Grafana 11.6. Source: grafana-foundation-sdk 1769699379!11.6.0, models/dashboard.py."""

_WIDTH, _HEIGHT, _COLUMNS = 12, 8, 2
_PROMETHEUS, _CLOUDWATCH = "prometheus", "cloudwatch"
_SUFFIXES = ("_bucket", "_count", "_sum")
_SIGNAL = re.compile(r"\$\{([a-z0-9-]+)")


class Dashboards(NamedTuple):
    """What was built, and what was not."""

    files: dict[str, dict[str, Any]]
    """Dashboards by file name, without the ending."""

    left_out: list[str]
    """Panels without any curve, with the dashboard's title."""


def build(deployment: ServingDeployment) -> Dashboards:
    words = _list_words(deployment)
    files: dict[str, dict[str, Any]] = {}
    left_out: list[str] = []
    for name, row in own_yaml.read(FILE).items():
        panels: list[dict[str, Any]] = []
        for panel in row["panels"]:
            targets = _build_targets(panel, words)
            if targets:
                panels.append(_build_panel(panel, targets, len(panels)))
            else:
                left_out.append(f"{row['title']}: {panel['title']}")
        files[name] = _build_dashboard(name, row["title"], deployment.name, panels)
    return Dashboards(files, left_out)


def _list_words(deployment: ServingDeployment) -> dict[str, list[tuple[str, dict[str, str]]]]:
    """List what panels may name, and the legend, by what a panel has a curve of."""
    roles = {}
    for role in deployment.roles:
        words = alerts.build_words(deployment, role)
        labels = f"{{{words['labels']}}}"
        parts = {
            f"{name}{suffix}": f"{metric}{suffix}{labels}"
            for name, metric in role.metrics.items()
            for suffix in _SUFFIXES
        }
        roles[role.name] = {**words, **parts, "up": f"{signals.load()['up'].name}{labels}"}
    engines = [role.name for role in deployment.engine_roles]
    objectives = [
        (row.name, {**roles[row.role], **alerts.build_objective_words(row.model_dump(), roles[row.role]["labels"])})
        for row in deployment.latency_objectives
    ]
    return {
        "engine": [(name, roles[name]) for name in engines],
        "router": [(deployment.router.name, roles[deployment.router.name])],
        "role": list(roles.items()),
        "objective": objectives,
        "once": [("", _build_shared_words(deployment, roles))],
    }


def _build_shared_words(deployment: ServingDeployment, roles: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Build what panels name of the whole fleet, and of all engines."""
    words = {name: row.name for name, row in signals.load().items() if row.role in ("replica", "gpu")}
    prices = {role.name: price.price_replica(role, deployment.environment.region) for role in deployment.engine_roles}
    if all(prices.values()):
        words["usd-h"] = " + ".join(f"{usd_h:.4f} * sum({roles[name]['up']})" for name, usd_h in prices.items())
    # Prefill computes one token of each answer, which decode counts again.
    answering = [roles[name] for name in prices if name != PREFILL and "output-tokens" in roles[name]]
    if len(answering) == len([name for name in prices if name != PREFILL]):
        words["output-tokens"] = answering[0]["output-tokens"]
        if len(answering) > 1:
            names = "|".join(role.name for role in deployment.answering_roles)
            words["output-tokens"] = re.sub(r'component="[^"]+"', f'component=~"{names}"', words["output-tokens"])
    return words


def _build_targets(
    panel: Mapping[str, Any], words: Mapping[str, Sequence[tuple[str, Mapping[str, str]]]]
) -> list[dict[str, Any]]:
    if "cloudwatch" in panel:
        return [_build_cloudwatch_target(panel)]
    filled = [
        (panel.get("legend", name), alerts.fill(panel["expr"], fillings)) for name, fillings in words[panel["each"]]
    ]
    return [
        {
            "refId": chr(ord("A") + index),
            "datasource": _build_source(_PROMETHEUS),
            "expr": expression,
            "legendFormat": legend,
        }
        for index, (legend, expression) in enumerate(filled)
        if alerts.UNFILLED not in expression
    ]


def _build_cloudwatch_target(panel: Mapping[str, Any]) -> dict[str, Any]:
    signal = signals.load()[panel["cloudwatch"]]
    return {
        "refId": "A",
        "datasource": _build_source(_CLOUDWATCH),
        "queryMode": "Metrics",
        "metricQueryType": 0,
        "metricEditorMode": 1,
        "expression": f"SEARCH('\"{signal.program}\" MetricName=\"{signal.name}\"', '{panel['stat']}', 60)",
        "region": "default",
    }


def _build_panel(panel: Mapping[str, Any], targets: Sequence[dict[str, Any]], index: int) -> dict[str, Any]:
    row, column = divmod(index, _COLUMNS)
    return {
        "id": index + 1,
        "type": "timeseries",
        "title": panel["title"],
        "description": "\n\n".join(_describe(panel)),
        "datasource": targets[0]["datasource"],
        "gridPos": {"h": _HEIGHT, "w": _WIDTH, "x": column * _WIDTH, "y": row * _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel["unit"]}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True}},
        "targets": list(targets),
    }


def _describe(panel: Mapping[str, Any]) -> Iterator[str]:
    """Yield what each signal of a panel means, and what to do."""
    names = dict.fromkeys(_SIGNAL.findall(panel.get("expr", "")) or [panel.get("cloudwatch", "")])
    for name in names:
        if name in signals.load():
            signal = signals.load()[name]
            yield f"{name}: {signal.meaning}. Action: {signal.action}."


def _build_dashboard(name: str, title: str, deployment: str, panels: Sequence[dict[str, Any]]) -> dict[str, Any]:
    sources = dict.fromkeys(panel["datasource"]["type"] for panel in panels)
    return {
        "uid": f"{deployment}-{name}"[:40],
        "title": f"{title}: {deployment}" if name in ("deployment", "cost") else title,
        "tags": ["llm-serving"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [{"name": source, "type": "datasource", "query": source} for source in sources]},
        "panels": list(panels),
    }


def _build_source(kind: str) -> dict[str, str]:
    return {"type": kind, "uid": f"${{{kind}}}"}
