"""Signals are one table: what scales, what the rows may name, and what a service of any target may follow."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from llm_serving.catalog import command_parts, engines, routers, signals
from llm_serving.catalog.engines import EngineMetric
from llm_serving.catalog.routers import RouterMetric
from llm_serving.services.service import Signal
from tests import engines_own
from tests.catalog import published

ROOT = Path(__file__).parents[2]


def test_replicas_follow_the_signals_that_scale() -> None:
    assert signals.list_scaling() == get_args(Signal)


def test_each_signal_is_a_metric_of_its_source() -> None:
    assert set(signals.list_of_role("engine")) == set(get_args(EngineMetric))
    assert signals.list_of_role("router") == get_args(RouterMetric)
    own = {name: signal for name, signal in signals.load().items() if signal.role in ("engine", "router")}
    assert {signal.program + signal.name for signal in own.values()} == {""}, "those names are in their rows"
    others = [signal for name, signal in signals.load().items() if name not in own]
    assert others and all(signal.program and signal.name for signal in others)


def test_the_default_engine_and_its_router_have_every_signal() -> None:
    rows = engines.load_engines()
    engine = rows[command_parts.get_default(rows)]
    router = routers.load_routers()[engine.router]
    present = {*engine.metrics, *router.metrics["aggregated"]}
    assert present == {*signals.list_of_role("engine"), *signals.list_of_role("router")}


def find_unpublished(names: list[signals.ProgramName]) -> list[signals.ProgramName]:
    """Names that no list of their program has."""
    lists = {program: published.list_page_names(row) for program, row in published.read().items()}
    return [name for name in names if name.name not in lists[name.program]]


def test_every_name_is_in_its_programs_published_list() -> None:
    assert find_unpublished(list(signals.list_program_names())) == []


def test_a_misspelt_name_is_found() -> None:
    # The engine's counter has _total, which the alert of another project forgot.
    wrong = [
        signals.ProgramName("preemptions", "vllm", "vllm:num_preemptions"),
        signals.ProgramName("errors", "vllm-router", "vllm_router_errors_total"),
        signals.ProgramName("running-tasks", "ECS/ContainerInsights", "RunningTasksCount"),
    ]
    assert find_unpublished(wrong) == wrong


@pytest.mark.engine
def test_vllms_list_is_what_its_package_creates() -> None:
    packages = next((engines_own.find_executables().parent / "lib").glob("python3*/site-packages"))
    rows = published.read()
    created = {kind: sorted(names) for kind, names in published.extract_vllm(packages).items()}
    assert rows["vllm"]["names"] == created
    assert engines.load_engines()["vllm"].buckets == {
        name: tuple(edges) for name, edges in published.extract_buckets(packages).items()
    }
    router = (packages / "vllm_router_rs.abi3.so").read_bytes()
    assert [name for name in rows["vllm-router"]["names"]["exact"] if name.encode() not in router] == []


def test_no_other_file_has_a_program_s_name_of_a_signal() -> None:
    """The chart is for use by itself, and functions and images are files of their own: other tests hold those."""
    names = {row.name for row in signals.list_program_names()} - {"up", "provisioning", "unrepaired"}
    pattern = re.compile("|".join(rf"\b{re.escape(name)}\b" for name in sorted(names, key=len, reverse=True)))
    files = [
        file
        for folder in ("src", "infra", "blueprints")
        for file in (ROOT / folder).rglob("*")
        if file.suffix in (".py", ".yaml", ".j2") and "/catalog/" not in str(file)
    ]
    assert len(files) > 300
    assert [str(file.relative_to(ROOT)) for file in files if pattern.search(file.read_text("utf-8"))] == []
