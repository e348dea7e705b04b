"""What holds of every deployment, whatever is asked of whichever fleet: the answer keeps it, or there is no answer."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from llm_serving import paths
from llm_serving.catalog import instances, models
from llm_serving.engines import memory
from llm_serving.fleet.loading import read as read_fleet
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import Document, load
from llm_serving.settings.errors import InputError, Mistake
from llm_serving.targets import matrix
from llm_serving.workloads.serving import placement, resolve
from llm_serving.workloads.serving.blueprint import Blueprint
from llm_serving.workloads.serving.deployment import Deployment, Process, Role
from llm_serving.workloads.serving.roles import Engine

FLEETS = sorted(paths.EXAMPLE_FLEETS.glob("*.yaml"))
MODELS = sorted(name for name, model in models.catalogue().items() if model.task == "generate")
PATTERNS = ("aggregated", "disaggregated", "distributed")
SMALL = [name for name in MODELS if models.find(name).weight_bytes < 20e9]
CLOUD = {"eks": ("eks",), "ecs": ("ecs",), "both": ("eks", "ecs")}
CONTEXTS = [512, 2048, 8192, 32768]


@dataclass(frozen=True)
class Asked:
    """A blueprint, the fleet it is for, and where it is to run."""

    fleet: str
    target: str
    said: dict[str, Any]


def _role(draw: st.DrawFn, pools: list[str], pattern: str) -> dict[str, Any]:
    stages = [1, 2, 4] if pattern == "distributed" else [1]
    split = {"pipeline": draw(st.sampled_from(stages)), "data": draw(st.sampled_from([1, 1, 1, 1, 2]))}
    ways = draw(st.sampled_from([1, 1, 1, 2, 2, 3, 4, 8]))
    least = draw(st.integers(0, 2))
    most = draw(st.integers(max(1, least), 6))
    return {
        "pool": draw(st.sampled_from(pools)),
        "replicas": f"{least}..{most}" if most > least else most,
        "accelerators": ways * split["pipeline"] * split["data"],
        "expert": draw(st.sampled_from([False] * 5 + [True])),
        **split,
    }


@st.composite
def asked(draw: st.DrawFn) -> Asked:
    """A blueprint whose keys are all known; whether they go together is the resolver's to say."""
    file = draw(st.sampled_from(FLEETS))
    fleet = _fleet(file).value
    pools = [name for name, pool in fleet.pools.items() if instances.find(pool.types[0]).accelerators] or [*fleet.pools]
    pattern = draw(st.sampled_from(PATTERNS))
    names = ["prefill", "decode"] if pattern == "disaggregated" else ["worker"]
    context = draw(st.sampled_from(CONTEXTS))
    said = {
        "name": "any",
        "pattern": pattern,
        "model": draw(st.sampled_from([*SMALL, *SMALL, *MODELS])),
        "context": context,
        "roles": {
            **{name: _role(draw, pools, pattern) for name in names},
            "router": {"policy": draw(st.sampled_from(["cache-aware", "kv-aware", "load-aware"]))},
        },
        "tuning": {"kv_cache": draw(st.sampled_from(["auto", "auto", "auto", "fp8"]))},
        "traffic": {"users": draw(st.integers(1, 64)), "input_tokens": context // 2, "output_tokens": context // 4},
        "slo": {},
    }
    return Asked(str(file), draw(st.sampled_from(["local", *CLOUD[fleet.orchestrator]])), said)


@cache
def _fleet(file: Path) -> Document[Fleet]:
    return read_fleet(file)


def _resolved(one: Asked, folder: Path) -> tuple[Document[Blueprint], Deployment]:
    """The blueprint written as a user would, read and resolved.

    Raises:
        InputError: it was refused.
    """
    file = folder / "blueprint.yaml"
    file.write_text(yaml.safe_dump(one.said))
    wanted, fleet = load(file, Blueprint), _fleet(Path(one.fleet))
    place = matrix.place_of(one.target, wanted.value, fleet.value)
    return wanted, resolve.resolve(wanted, fleet, place.model_copy(update={"cores": 64}))


def _pool_has_enough(wanted: Blueprint, made: Deployment, fleet: Fleet) -> None:
    """Never more accelerators than the pool grows to."""
    taken: Counter[str] = Counter()
    each: dict[str, int] = {}
    for role in made.engines:
        settings_of_role = wanted.roles.engines[role.name]
        taken[role.pool] += settings_of_role.accelerators * settings_of_role.replicas.most
        rows = [instances.find(name) for name in role.instance_types]
        each[role.pool] = max(placement.accelerators(row) for row in rows)
    for pool, count in taken.items():
        assert count <= fleet.pools[pool].size.most * each[pool]


def _is_split_evenly(wanted: Engine, role: Role) -> None:
    """Tensor parallelism divides the attention's heads, and all splits together make the accelerators."""
    assert role.serves is not None
    model = models.find(role.serves.model)
    assert model.heads % role.split.tensor == 0
    assert role.split.tensor * role.split.pipeline * role.split.data == wanted.accelerators


def _holds_its_model(wanted: Blueprint, role: Role) -> None:
    """On each type that is asked for, the cache holds a request of the full context beside the weights."""
    assert role.serves is not None
    split = role.split
    for name in role.instance_types:
        fit = memory.fit(
            models.find(role.serves.model),
            instances.find(name),
            split.tensor,
            pipeline=split.pipeline,
            expert_ranks=split.tensor * split.data if split.expert else 0,
            context=wanted.context,
            dtype=wanted.tuning.kv_cache,
        )
        assert fit.fits, fit.why
        assert fit.cache_tokens >= wanted.context


def _asks_only_for_efa_that_is_there(role: Role, fleet: Fleet) -> None:
    """EFA only of a pool that has it switched on, no more than the machine has, and several machines never without."""
    rows = [instances.find(name) for name in role.instance_types]
    if role.resources.efa or role.resources.machine_efa:
        assert fleet.pools[role.pool].efa
        assert all(0 < role.resources.efa <= role.resources.machine_efa <= row.efa_interfaces for row in rows)
    if role.machines > 1:
        assert role.resources.efa
        assert len(role.zones) == len(role.instance_types) == 1
    rdma = "LIBFABRIC" in " ".join(role.processes[0].command) if role.processes else False
    assert not rdma or all(row.gpudirect_rdma for row in rows)


def _listening(process: Process, chosen: set[int]) -> set[int]:
    """The place's ports in an engine's command and environment, where no other process's stand."""
    text = " ".join((*process.command, *process.environment.values()))
    return chosen & {int(number) for number in re.findall(r"\d+", text)}


def _no_port_clashes(made: Deployment) -> None:
    """On one machine each process listens on ports of its own, and the place has chosen all of them."""
    chosen = set(made.place.ports.values())
    router = made.router.processes[0]
    own = [_listening(process, chosen) for process in made.replicas]
    own.append({made.place.ports["router"], made.place.ports["router-metrics"]})
    assert not [pair for pair in itertools.combinations(own, 2) if pair[0] & pair[1]]
    assert all(process.port in ports for process, ports in zip((*made.replicas, router), own, strict=True))


def _decode_splits_as_often(made: Deployment) -> None:
    """A cache is handed on to as many ways or more."""
    split = {role.name: role.split.tensor for role in made.engines}
    assert split.get("decode", 1) >= split.get("prefill", 1)


def _holds(one: Asked, wanted: Document[Blueprint], made: Deployment) -> None:
    fleet = _fleet(Path(one.fleet)).value
    _pool_has_enough(wanted.value, made, fleet)
    for role in made.engines:
        _is_split_evenly(wanted.value.roles.engines[role.name], role)
        _holds_its_model(wanted.value, role)
        _asks_only_for_efa_that_is_there(role, fleet)
    _decode_splits_as_often(made)
    if one.target == "local":
        _no_port_clashes(made)


def test_whatever_is_asked_the_answer_keeps_what_must_hold_or_the_refusal_has_its_line(tmp_path: Path) -> None:
    outcomes: Counter[tuple[str, str]] = Counter()

    @seed(20261121)
    @settings(max_examples=400, deadline=None, database=None)
    @given(asked())
    def every(one: Asked) -> None:
        try:
            wanted, made = _resolved(one, tmp_path)
        except InputError as error:
            outcomes["refused", ""] += 1
            assert error.parts
            for part in error.parts:
                assert not isinstance(part, Mistake) or (part.line >= 1 and part.why and part.write)
            return
        outcomes[one.target, one.said["pattern"]] += 1
        _holds(one, wanted, made)

    every()
    # A property of nothing would hold too.
    for pattern in PATTERNS:
        assert outcomes["local", pattern] >= 3, outcomes
        assert outcomes["eks", pattern] + outcomes["ecs", pattern] >= 3, outcomes
    assert outcomes["refused", ""] >= 50
