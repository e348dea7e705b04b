"""Signals are one table: what scales, what the rows may name, and what a service of any target may follow."""

from __future__ import annotations

from typing import get_args

from llm_serving.catalog import engines, signals
from llm_serving.catalog.engines import EngineMetric, RouterMetric
from llm_serving.services.service import Signal


def test_replicas_follow_the_signals_that_scale() -> None:
    assert signals.list_scaling() == get_args(Signal)


def test_each_signal_is_a_metric_of_its_source() -> None:
    names = {"engine": get_args(EngineMetric), "router": get_args(RouterMetric)}
    assert all(name in names[signal.source] for name, signal in signals.SIGNALS.items())
    assert signals.list_of_router() == get_args(RouterMetric)


def test_the_default_engine_and_its_router_have_every_signal() -> None:
    rows = engines.load_engines()
    engine = rows[engines.get_default(rows)]
    router = engines.load_routers()[engine.router]
    present = {*engine.metrics, *router.metrics["aggregated"]}
    assert present >= signals.SIGNALS.keys()
