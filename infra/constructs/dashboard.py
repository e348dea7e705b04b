"""Dashboards of CloudWatch: a graph for each signal, and what each means, from `catalog/signals.yaml`.

Source of the body's form: CloudWatch API reference, "Dashboard Body Structure and Syntax", 2026-11.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from infra.bindings import aws
from infra.constructs.alarm import PERIOD_S, Metric
from infra.constructs.fleet_stack import FleetStack
from llm_serving.catalog import signals
from llm_serving.fleet import names
from llm_serving.fleet.model import Fleet

_WIDTH, _HEIGHT, _COLUMNS = 12, 6, 2

_MAX_CURVES = 100
"""Metrics of one widget, as the API reference has it for `metrics`; a graph shows the first of more."""


def add_dashboard(stack: FleetStack, graphs: Mapping[str, Sequence[Metric]]) -> None:
    """Add the dashboard; `graphs` has the curves of each signal, each labelled with its id."""
    widgets = [_build_widget(stack.fleet, *graph, index) for index, graph in enumerate(graphs.items())]
    aws.cloudwatch_dashboard.CloudwatchDashboard(
        stack,
        "dashboard",
        dashboard_name=names.format_dashboard_name(stack.fleet, stack.node.id),
        dashboard_body=json.dumps({"start": "-PT6H", "widgets": [*widgets, _build_text(graphs)]}),
    )


def _build_widget(fleet: Fleet, name: str, curves: Sequence[Metric], index: int) -> dict[str, Any]:
    signal = signals.load()[name]
    row, column = divmod(index, _COLUMNS)
    return {
        "type": "metric",
        "x": column * _WIDTH,
        "y": row * _HEIGHT,
        "width": _WIDTH,
        "height": _HEIGHT,
        "properties": {
            "title": f"{name}: {signal.meaning}",
            "view": "timeSeries",
            "region": fleet.region,
            "stat": curves[0].stat,
            "period": PERIOD_S,
            "metrics": [
                [curve.namespace, curve.name, *itertools.chain(*curve.dimensions.items()), {"label": curve.id}]
                for curve in curves[:_MAX_CURVES]
            ],
            "yAxis": {"left": {"label": signal.unit, "min": 0, "showUnits": False}},
        },
    }


def _build_text(graphs: Collection[str]) -> dict[str, Any]:
    """Return the table below the graphs: what to do about each signal."""
    rows = [f"| {name} | {signals.load()[name].action} |" for name in graphs]
    return {
        "type": "text",
        "x": 0,
        "y": -(-len(graphs) // _COLUMNS) * _HEIGHT,
        "width": _WIDTH * _COLUMNS,
        "height": 2 + len(graphs),
        "properties": {"markdown": "\n".join(["| signal | what to do |", "|---|---|", *rows])},
    }
