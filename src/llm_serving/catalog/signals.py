"""Signals that scaling, alarms and alerts of a target read: the catalog's names, and what each counts.

An engine's row and a router's row hold the Prometheus name of each (`metrics`); who reads them selects from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from llm_serving.catalog.engines import EngineMetric, RouterMetric


class Signal(NamedTuple):
    """What a signal counts."""

    source: Literal["engine", "router"]
    unit: str
    over_ranks: Literal["sum", "mean"] = "sum"
    """What the series of a replica's data-parallel ranks come to as one."""

    scales: bool = False
    """Whether replicas can follow it."""


SIGNALS: Mapping[EngineMetric | RouterMetric, Signal] = MappingProxyType(
    {
        "queue": Signal("engine", "requests that wait", scales=True),
        "running": Signal("engine", "requests that it works on"),
        "kv-usage": Signal("engine", "share of the KV cache in use, 0 to 1", over_ranks="mean", scales=True),
        "preemptions": Signal("engine", "requests whose KV cache was dropped, since the start"),
        "failed-transfers": Signal("engine", "transfers of KV caches that failed, since the start"),
        "requests": Signal("router", "requests, since the start"),
        "errors": Signal("router", "requests that failed, since the start"),
    }
)
"""By the catalog's name, in the order in which they are written."""


def list_scaling() -> tuple[str, ...]:
    """Return the signals that replicas can follow."""
    return tuple(name for name, signal in SIGNALS.items() if signal.scales)


def list_of_router() -> tuple[str, ...]:
    """Return the signals of a router."""
    return tuple(name for name, signal in SIGNALS.items() if signal.source == "router")
