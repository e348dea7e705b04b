"""Dashboards of CloudWatch: a graph for each signal, and what each means, from `catalog/signals.yaml`.

Source of the body's form: CloudWatch API reference, "Dashboard Body Structure and Syntax", 2026-11.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from infra.bindings import aws
from infra.constructs.alarm import PERIOD_S
from infra.constructs.fleet_stack import FleetStack
from llm_serving.catalog import signals
from llm_serving.fleet import names
from llm_serving.fleet.model import Fleet

_WIDTH, _HEIGHT, _COLUMNS = 12, 6, 2

_MAX_CURVES = 100
"""Metrics of one widget, as the API reference has it for `metrics`; a graph shows the first of more."""


class Curve(NamedTuple):
    """One metric of a graph."""

    label: str
    name: str
    """The program's."""

    dimensions: Mapping[str, str]


class Graph(NamedTuple):
    """One signal."""

    signal: str
    namespace: str
    stat: str
    curves: Sequence[Curve]


def build_graph(signal: str, stat: str, curves: Mapping[str, Mapping[str, str]]) -> Graph:
    """Return the graph of a signal of CloudWatch's own, whose curves are dimensions by label."""
    row = signals.load()[signal]
    return Graph(signal, row.program, stat, [Curve(label, row.name, curves[label]) for label in curves])


def add_dashboard(stack: FleetStack, graphs: Sequence[Graph]) -> None:
    widgets = [_build_widget(stack.fleet, graph, index) for index, graph in enumerate(graphs)]
    aws.cloudwatch_dashboard.CloudwatchDashboard(
        stack,
        "dashboard",
        dashboard_name=names.format_dashboard_name(stack.fleet, stack.node.id),
        dashboard_body=json.dumps({"start": "-PT6H", "widgets": [*widgets, _build_text(graphs)]}),
    )


def _build_widget(fleet: Fleet, graph: Graph, index: int) -> dict[str, Any]:
    signal = signals.load()[graph.signal]
    row, column = divmod(index, _COLUMNS)
    return {
        "type": "metric",
        "x": column * _WIDTH,
        "y": row * _HEIGHT,
        "width": _WIDTH,
        "height": _HEIGHT,
        "properties": {
            "title": f"{graph.signal}: {signal.meaning}",
            "view": "timeSeries",
            "region": fleet.region,
            "stat": graph.stat,
            "period": PERIOD_S,
            "metrics": [
                [graph.namespace, curve.name, *itertools.chain(*curve.dimensions.items()), {"label": curve.label}]
                for curve in graph.curves[:_MAX_CURVES]
            ],
            "yAxis": {"left": {"label": signal.unit, "min": 0, "showUnits": False}},
        },
    }


def _build_text(graphs: Sequence[Graph]) -> dict[str, Any]:
    """Return the table below the graphs: what to do about each signal."""
    rows = [f"| {graph.signal} | {signals.load()[graph.signal].action} |" for graph in graphs]
    return {
        "type": "text",
        "x": 0,
        "y": -(-len(graphs) // _COLUMNS) * _HEIGHT,
        "width": _WIDTH * _COLUMNS,
        "height": 2 + len(graphs),
        "properties": {"markdown": "\n".join(["| signal | what to do |", "|---|---|", *rows])},
    }
