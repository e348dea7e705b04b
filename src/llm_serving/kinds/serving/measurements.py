"""What earlier reports measured: what prompts share, the load within the SLO, and the replicas that traffic needs.

A sweep holds as long as what it measured stays: the models and their turns, the engine, its version and settings, the
machines of a replica, the prompts and the SLO. Replicas and arrivals may change: capacity is taken to grow in
proportion to the replicas.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from llm_serving import paths
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.services.blueprint import resolve_name
from llm_serving.services.environment import MeasuredCapacity, MeasuredPrefix
from llm_serving.services.runs import REPORT_FILE, SWEEP_FILE, SWEEP_FOLDER, compute_prompts_digest
from llm_serving.settings import untrusted_json
from llm_serving.settings.document import Document

MAX_READ = 50
"""Reports, and sweeps, that are read, from the newest on."""

_LOAD_FIELDS = {"users", "arrivals", "think_time", "trace_speed", "requests", "time_limit", "warm_up", "seed"}
"""Settings of the traffic that say how much is sent, and not what or in which bursts."""

_EPSILON = 1e-9


def read_all(runs: Path) -> tuple[MeasuredCapacity, ...]:
    """Return what a deployment's sweeps in the folder of its runs measured, the newest first, without broken files."""
    files = sorted(runs.glob(f"{SWEEP_FOLDER}*/{SWEEP_FILE}"), reverse=True)
    root = runs.parent.parent
    results = (_read(file, str(file.relative_to(root))) for file in files[:MAX_READ])
    return tuple(result for result in results if result)


def _read(file: Path, source: str) -> MeasuredCapacity | None:
    try:
        measurements = untrusted_json.read(file, infinite=True)
        capacity = measurements["capacity"] and {
            "axis": measurements.get("axis", "rate"),
            **measurements["capacity"],
            "source": source,
        }
        return MeasuredCapacity.model_validate(capacity) if capacity else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ValidationError):
        return None


def find_prompts(blueprint: Document[Blueprint], root: Path) -> MeasuredPrefix | None:
    """Return the measurement of the newest report below `root` with the prompts of the blueprint as it is now.

    None where there is none, or where it is not needed: the blueprint states a policy, or the share itself.
    """
    value = blueprint.value
    if value.roles.router.policy or value.traffic.has_shared_prefix:
        return None
    digest = compute_prompts_digest(value.traffic, blueprint.path.parent)
    reports = sorted((root / paths.RUNS / resolve_name(blueprint)).glob(f"[0-9]*/{REPORT_FILE}"), reverse=True)
    results = (_read_measured(report, digest) for report in reports[:MAX_READ])
    return next((result for result in results if result), None)


def _read_measured(report: Path, digest: str) -> MeasuredPrefix | None:
    """Return a report's measurement of those prompts; None if it is of others, too old, or broken."""
    try:
        payload = untrusted_json.read(report, infinite=True)
        shared, started_at = payload["shared"], payload["started_at"]
        is_alike = shared["of"] and shared["traffic"] == digest
        return MeasuredPrefix(shared_prefix=shared["prompts"], measured_at=started_at) if is_alike else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def compute_key(deployment: ServingDeployment) -> str:
    """Return a digest of what decides the load that a deployment carries, replicas left out."""
    roles = [
        {
            **role.model_dump(mode="json", include={"name", "instance_types", "accelerators", "nodes", "parallelism"}),
            "model": role.served_model and (role.served_model.model, role.served_model.context),
            **(
                {
                    "sleepers": [(model.model, model.context) for model in role.sleepers.values()],
                    # Turns decide who waits for how long, and `waiting` who gets 429, which the SLO counts as an error.
                    "switch": role.switch and role.switch.model_dump(mode="json"),
                }
                if role.sleepers
                else {}
            ),
            **({"weight": role.weight} if role.weight > 1 else {}),
            **({"engine_arguments": role.engine_arguments} if role.engine_arguments else {}),
            # The engine's version; registries and digests are the fleet's.
            **({"image": role.image.partition("@")[0].rpartition("/")[2]} if role.image else {}),
        }
        for role in deployment.engine_roles
    ]
    decisive = {
        **deployment.model_dump(mode="json", include={"target", "pattern", "engine", "framework", "tuning", "slo"}),
        "traffic": deployment.traffic.model_dump(mode="json", exclude=_LOAD_FIELDS),
        "roles": roles,
        "cores": deployment.environment.cores,
    }
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]


def find(deployment: ServingDeployment) -> MeasuredCapacity | None:
    """Return the newest measurement that holds for a deployment; None where there is none.

    One by users holds for users alone: they send less while answers are slow, and arrivals do not.
    """
    axes = ("rate",) if deployment.traffic.is_open_loop else ("rate", "users")
    capacities = [capacity for capacity in deployment.environment.capacities if capacity.axis in axes]
    key = compute_key(deployment) if capacities else ""
    return next((capacity for capacity in capacities if capacity.key == key), None)


def count_needed(capacity: MeasuredCapacity, arrivals: float) -> dict[str, int]:
    """Return the replicas of each role that arrivals, in requests a second, need."""
    share = arrivals / capacity.requests_per_s
    return {name: max(1, math.ceil(count * share - _EPSILON)) for name, count in capacity.replicas.items()}


def list_shortages(deployment: ServingDeployment) -> Iterator[str]:
    """Yield a note for each role that has fewer replicas than the traffic's arrivals need by the last sweep."""
    capacity, arrivals = find(deployment), deployment.traffic.arrivals
    if capacity is None or arrivals is None:
        return
    needed_replicas = count_needed(capacity, arrivals)
    for role in deployment.engine_roles:
        count = needed_replicas.get(role.name, 0)
        if role.replicas.max < count:
            yield (
                f"{role.name}: {role.replicas} replicas are too few for arrivals of {arrivals:g}/s: they need {count}, "
                f"by {_describe_measurement(capacity)}. Fix: set replicas: {count}."
            )


def describe(deployment: ServingDeployment) -> Iterator[str]:
    """Yield what the last sweep says of the deployment, and each shortage."""
    capacity, arrivals = find(deployment), deployment.traffic.arrivals
    if capacity is None:
        return
    needs = ""
    if arrivals is not None:
        counts = ", ".join(f"{count} {name}" for name, count in count_needed(capacity, arrivals).items())
        needs = f"; arrivals of {arrivals:g}/s need {counts}"
    yield f"{_describe_measurement(capacity)}{needs}"
    yield from list_shortages(deployment)


def _describe_measurement(capacity: MeasuredCapacity) -> str:
    counts = " and ".join(f"{count} {name}" for name, count in capacity.replicas.items())
    return f"{capacity.requests_per_s:.3g}/s with {counts}, swept {capacity.measured_at[:10]} ({capacity.source})"


def build_payload(deployment: ServingDeployment) -> dict[str, Any] | None:
    """Return the last sweep's capacity and the replicas that the arrivals need, as data; None without a sweep."""
    capacity, arrivals = find(deployment), deployment.traffic.arrivals
    if capacity is None:
        return None
    return {
        **capacity.model_dump(mode="json", exclude={"key"}),
        "per_replica": {name: capacity.requests_per_s / count for name, count in capacity.replicas.items()},
        "needed_replicas": None if arrivals is None else count_needed(capacity, arrivals),
    }
