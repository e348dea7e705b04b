"""Signals that scaling, alarms, alerts and dashboards read: our names, what each counts, and the programs' names.

They are data, in `signals.yaml`. An engine's row and a router's row hold the Prometheus name of each (`metrics`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

from llm_serving.catalog.engines import load_engines
from llm_serving.catalog.frameworks import load_frameworks
from llm_serving.catalog.routers import load_routers
from llm_serving.settings import own_yaml
from llm_serving.settings.plain import PlainData

FILE = Path(__file__).with_name("signals.yaml")

SignalRole = Literal["engine", "router", "replica", "task", "batch", "stream", "gateway", "gpu", "account"]
"""Whose metric it is."""


class Signal(PlainData):
    """What a signal counts."""

    role: SignalRole
    program: str = ""
    """Whose metric it is; empty of engines and routers."""

    name: str = ""
    """The program's name of it; empty of engines and routers, whose rows have it."""

    unit: str
    meaning: str
    action: str
    """What to do about it."""

    over_ranks: Literal["sum", "mean"] = "sum"
    """What the series of a replica's data-parallel ranks come to as one."""

    scales: bool = False
    """Whether replicas can follow it."""


class ProgramName(NamedTuple):
    """What one program calls a signal."""

    signal: str
    program: str
    name: str


@functools.cache
def load() -> Mapping[str, Signal]:
    """Return all signals by our name, in the order in which they are written."""
    roles = own_yaml.read(FILE)
    return MappingProxyType(
        {
            name: Signal.model_validate({"role": role, **row})
            for role in get_args(SignalRole)
            for name, row in roles[role].items()
        }
    )


def list_scaling() -> tuple[str, ...]:
    """Return the signals that replicas can follow."""
    return tuple(name for name, signal in load().items() if signal.scales)


def list_of_role(role: SignalRole) -> tuple[str, ...]:
    return tuple(name for name, signal in load().items() if signal.role == role)


def list_program_names() -> Iterator[ProgramName]:
    frameworks = load_frameworks().items()
    engines = [(engine, row.metrics) for engine, row in load_engines().items()]
    engines += [(framework, pair.metrics) for framework, row in frameworks for pair in row.engines.values()]
    routers = [(router, metrics) for router, row in load_routers().items() for metrics in row.metrics.values()]
    for name, signal in load().items():
        if signal.program:
            yield ProgramName(name, signal.program, signal.name)
        else:
            programs: Sequence[tuple[str, Mapping[Any, str]]] = engines if signal.role == "engine" else routers
            for program, metrics in programs:
                yield from (ProgramName(name, program, part) for part in metrics.get(name, "").split("|") if part)
