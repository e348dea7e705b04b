"""Invariants of every deployment of any blueprint on any fleet; a blueprint that cannot meet them is refused."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from llm_serving import paths
from llm_serving.catalog import instances, models
from llm_serving.engines import vllm
from llm_serving.engines.memory import ReplicaSetup
from llm_serving.fleet.interfaces import EFA_DEVICE
from llm_serving.fleet.loading import load_fleet as read_fleet
from llm_serving.fleet.model import AddOns, Fleet
from llm_serving.kinds.serving import node_shares, resolve
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.kinds.serving.deployment import Role, ServingDeployment
from llm_serving.kinds.serving.roles import EngineRole
from llm_serving.services.service import Service
from llm_serving.settings.document import Document, load
from llm_serving.settings.errors import InputError, Mistake
from llm_serving.targets import matrix, registry

FLEETS = sorted(paths.EXAMPLE_FLEETS.glob("*.yaml"))
MODELS = sorted(name for name, model in models.load().items() if model.task == "generate")
PATTERNS = ("aggregated", "disaggregated", "distributed")
SMALL = [name for name in MODELS if models.find(name).weight_bytes < 20e9]
CLOUD = {"eks": ("eks",), "ecs": ("ecs",), "both": ("eks", "ecs")}
CONTEXTS = [512, 2048, 8192, 32768]


@dataclass(frozen=True)
class Case:
    """A blueprint, the fleet it is for, and where it is to run."""

    fleet: str
    target: str
    settings: dict[str, Any]


def _role(draw: st.DrawFn, pools: list[str], pattern: str) -> dict[str, Any]:
    stages = [1, 2, 4] if pattern == "distributed" else [1]
    parallelism = {"pipeline": draw(st.sampled_from(stages)), "data": draw(st.sampled_from([1, 1, 1, 1, 2]))}
    tensor_parallel = draw(st.sampled_from([1, 1, 1, 2, 2, 3, 4, 8]))
    min_replicas = draw(st.integers(0, 2))
    max_replicas = draw(st.integers(max(1, min_replicas), 6))
    return {
        "pool": draw(st.sampled_from(pools)),
        "replicas": f"{min_replicas}..{max_replicas}" if max_replicas > min_replicas else max_replicas,
        "accelerators": tensor_parallel * parallelism["pipeline"] * parallelism["data"],
        "expert": draw(st.sampled_from([False] * 5 + [True])),
        **parallelism,
    }


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A blueprint with known keys; the resolver decides whether they are compatible."""
    file = draw(st.sampled_from(FLEETS))
    fleet = _load_fleet(file).value
    pools = [name for name, pool in fleet.pools.items() if instances.find(pool.types[0]).accelerators] or [*fleet.pools]
    pattern = draw(st.sampled_from(PATTERNS))
    names = ["prefill", "decode"] if pattern == "disaggregated" else ["worker"]
    context = draw(st.sampled_from(CONTEXTS))
    blueprint_settings = {
        "name": "any",
        "pattern": pattern,
        "model": draw(st.sampled_from([*SMALL * 4, *MODELS])),
        "context": context,
        "roles": {
            **{name: _role(draw, pools, pattern) for name in names},
            "router": {"policy": draw(st.sampled_from(["cache-aware", "kv-aware", "load-aware"]))},
        },
        "tuning": {"kv_cache": draw(st.sampled_from(["auto", "auto", "auto", "fp8"]))},
        "traffic": {"users": draw(st.integers(1, 64)), "input_tokens": context // 2, "output_tokens": context // 4},
        "slo": {},
    }
    return Case(str(file), draw(st.sampled_from(["local", *CLOUD[fleet.orchestrator]])), blueprint_settings)


@cache
def _load_fleet(file: Path) -> Document[Fleet]:
    fleet = read_fleet(file)
    add_ons = AddOns(observability=True, schedulers=True, operators=True)
    return replace(fleet, value=fleet.value.model_copy(update={"add_ons": add_ons}))


def _resolve(case: Case, folder: Path) -> tuple[Document[Blueprint], ServingDeployment]:
    """The blueprint written as a user would, read and resolved.

    Raises:
        InputError: it was refused.
    """
    file = folder / "blueprint.yaml"
    file.write_text(yaml.safe_dump(case.settings))
    blueprint, fleet = load(file, Blueprint), _load_fleet(Path(case.fleet))
    environment = registry.load_target(case.target).assume_environment(blueprint.value, fleet.value, cores=matrix.CORES)
    return blueprint, resolve.resolve(blueprint, fleet, environment.model_copy(update={"cores": 64}))


def _check_pool_size(blueprint: Blueprint, deployment: ServingDeployment, fleet: Fleet) -> None:
    """Never more accelerators than the pool grows to."""
    accelerators_by_pool: Counter[str] = Counter()
    per_machine: dict[str, int] = {}
    for role in deployment.engine_roles:
        settings_of_role = blueprint.roles.engine_roles[role.name]
        accelerators_by_pool[role.pool] += settings_of_role.accelerators * settings_of_role.replicas.max
        rows = [instances.find(name) for name in role.instance_types]
        per_machine[role.pool] = max(node_shares.count_accelerators(row) for row in rows)
    for pool, count in accelerators_by_pool.items():
        assert count <= fleet.pools[pool].size.max * per_machine[pool]


def _check_even_split(engine: EngineRole, role: Role) -> None:
    """Tensor parallelism divides the attention's heads, and all splits together make the accelerators."""
    assert role.served_model is not None
    model = models.find(role.served_model.model)
    assert model.heads % role.parallelism.tensor == 0
    assert role.parallelism.tensor * role.parallelism.pipeline * role.parallelism.data == engine.accelerators


def _check_model_fits(blueprint: Blueprint, role: Role) -> None:
    """On each requested type, the cache fits a request of the full context beside the weights."""
    assert role.served_model is not None
    parallelism = role.parallelism
    for name in role.instance_types:
        fit = vllm.compute_fit(
            models.find(role.served_model.model),
            instances.find(name),
            ReplicaSetup(
                parallelism.tensor,
                pipeline=parallelism.pipeline,
                data=parallelism.data,
                whole_experts=parallelism.expert,
                context=blueprint.context,
                dtype=blueprint.tuning.kv_cache,
            ),
        )
        assert fit.fits, fit.why
        assert fit.cache_tokens >= blueprint.context


def _check_efa(deployment: ServingDeployment, role: Role, fleet: Fleet) -> None:
    """EFA only of a pool that has it switched on, no more than the machine has, and several machines never without."""
    rows = [instances.find(name) for name in role.instance_types]
    node_efa = sum(file.startswith(EFA_DEVICE) for file in role.resources.device_files)
    if role.resources.efa or node_efa:
        assert fleet.pools[role.pool].efa
        assert all(0 < role.resources.efa <= node_efa <= row.efa_interfaces for row in rows)
    if role.nodes > 1:
        assert role.resources.efa
        [zones] = {service.placement.zones for service in deployment.list_services(role)}
        assert len(zones) == len(role.instance_types) == 1
    rdma = any("LIBFABRIC" in " ".join(engine.command) for engine in deployment.list_services(role))
    assert not rdma or all(row.gpudirect_rdma for row in rows)


def _find_ports(process: Service, ports: set[int]) -> set[int]:
    """Return the ports of `ports` in a process's command and environment."""
    text = " ".join((*process.command, *process.env.values()))
    return ports & {int(number) for number in re.findall(r"\d+", text)}


def _check_ports(deployment: ServingDeployment) -> None:
    """Each local process listens on its own ports, all chosen by the environment."""
    environment_ports = set(deployment.environment.ports.values())
    router = deployment.entries[0]
    listening = [_find_ports(process, environment_ports) for process in deployment.workers]
    listening.append({deployment.environment.ports[name] for name in ("router", "router-admin", "router-metrics")})
    assert not [pair for pair in itertools.combinations(listening, 2) if pair[0] & pair[1]]
    assert all(process.port in ports for process, ports in zip((*deployment.workers, router), listening, strict=True))


def _check_decode_parallelism(deployment: ServingDeployment) -> None:
    """One of prefill and decode splits a layer a multiple of the ways of the other."""
    tensor_parallel = {role.name: role.parallelism.tensor for role in deployment.engine_roles}
    prefill, decode = tensor_parallel.get("prefill", 1), tensor_parallel.get("decode", 1)
    assert max(prefill, decode) % min(prefill, decode) == 0


def _check_deployment(case: Case, blueprint: Document[Blueprint], deployment: ServingDeployment) -> None:
    fleet = _load_fleet(Path(case.fleet)).value
    _check_pool_size(blueprint.value, deployment, fleet)
    for role in deployment.engine_roles:
        _check_even_split(blueprint.value.roles.engine_roles[role.name], role)
        _check_model_fits(blueprint.value, role)
        _check_efa(deployment, role, fleet)
    _check_decode_parallelism(deployment)
    if case.target == "local":
        _check_ports(deployment)


def test_any_blueprint_resolves_within_its_invariants_or_is_refused_at_a_line(tmp_path: Path) -> None:
    outcomes: Counter[tuple[str, str]] = Counter()

    @seed(20261121)
    @settings(max_examples=400, deadline=None, database=None)
    @given(cases())
    def check_case(case: Case) -> None:
        try:
            blueprint, deployment = _resolve(case, tmp_path)
        except InputError as error:
            outcomes["refused", ""] += 1
            assert error.parts
            for part in error.parts:
                assert not isinstance(part, Mistake) or (part.line >= 1 and part.reason and part.fix)
            return
        outcomes[case.target, case.settings["pattern"]] += 1
        _check_deployment(case, blueprint, deployment)

    check_case()
    # A property of nothing would hold too.
    for pattern in PATTERNS:
        assert outcomes["local", pattern] >= 3, outcomes
        assert outcomes["eks", pattern] + outcomes["ecs", pattern] >= 3, outcomes
    assert outcomes["refused", ""] >= 50
