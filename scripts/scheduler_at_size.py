"""Times the real kube-scheduler with every node of a fleet: one evening's shift of a week that `shift-plan` reads.

    .venv/bin/python -m scripts.scheduler_at_size                         # ads-scale, 10,688 accelerators
    .venv/bin/python -m scripts.scheduler_at_size --pods-of 8 --json      # batch pods that take a whole node each
    .venv/bin/python -m scripts.scheduler_at_size --fleet fleet.yaml --traffic week.yaml

Real are API server, etcd and scheduler, which `tests/control_plane` builds with Go in ten minutes, once. Nodes are
objects without a kubelet, so that pods are placed and preempted, and none runs. Steps:

place    real time of noon, a pod for each node, and batch pods on all other nodes of the pools that have a curve
shift    real time grows to the evening's most; its pods have the higher priority and preempt batch pods
return   real time goes back to noon's, and batch pods take the nodes again
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from kubernetes.dynamic.exceptions import ForbiddenError
from rich.table import Table

from llm_serving import console, paths, processes
from llm_serving.catalog import instances
from llm_serving.catalog.instances import Instance
from llm_serving.fleet import loading, shift_plan, traffic_curves
from llm_serving.fleet.shift_plan import STEP_S, PoolPlan
from llm_serving.operations.kube_api import Manifest
from llm_serving.settings.errors import BlueprintError, Unavailable
from llm_serving.targets.eks import namespace
from tests.control_plane import control_plane as planes
from tests.control_plane import machines
from tests.control_plane.control_plane import ControlPlane

FLEET = paths.EXAMPLE_FLEETS / "ads-scale.yaml"
TRAFFIC = paths.EXAMPLE_FLEETS / "curves" / "ads-scale.yaml"

NOON_H, EVENING_H = 12, 22
"""Hours of the first day between which real time grows to its most."""

PLACE = "default"
"""Namespace of the pods."""

BATCH, REAL_TIME = namespace.GIVES_WAY, "real-time"
PRIORITIES = {BATCH: namespace.PRIORITY, REAL_TIME: 0}
"""Those of `gives_way: on`, and of pods without a class."""

LIMIT_S = 1800.0
"""Longest wait for a step, on a busy machine."""

_PROGRAMS = {"kube-scheduler": "scheduler", "kube-apiserver": "API server", "etcd": "etcd"}


@dataclass(frozen=True)
class Pool:
    """A pool's nodes, and how many of them real time has."""

    name: str
    instance: Instance
    nodes: int
    noon: int
    evening: int
    """As `noon` where nothing shifts."""


@dataclass(frozen=True)
class Step:
    """What a step took."""

    name: str
    pods: int
    preempted: int
    seconds: float
    cpu_s: Mapping[str, float]
    """By program."""


def main(arguments: Sequence[str]) -> int:
    """Run the steps, print them, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--fleet", type=Path, default=FLEET)
    parser.add_argument("--traffic", type=Path, default=TRAFFIC)
    parser.add_argument("--pods-of", type=int, default=1, metavar="N", help="accelerators of a batch pod")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    try:
        pools = read_pools(options.fleet, options.traffic)
        with tempfile.TemporaryDirectory() as folder, planes.run(Path(folder), "", 0, only_places=True) as plane:
            steps = list(Shift(plane, pools, options.pods_of).run())
    except BlueprintError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    nodes, accelerators = sum(pool.nodes for pool in pools), sum(pool.nodes * count(pool) for pool in pools)
    if options.json:
        print(json.dumps({"nodes": nodes, "accelerators": accelerators, "steps": list(map(asdict, steps))}, indent=2))
    else:
        console.out.print(f"{nodes} nodes, {accelerators} accelerators")
        console.out.print(render(steps))
    return 0


def read_pools(fleet_file: Path, traffic: Path) -> list[Pool]:
    """Read the pools at their most; those without a curve are full of real time."""
    document = loading.load_fleet(fleet_file)
    curves = traffic_curves.load_curves(traffic, document.value).value
    plans = {plan.pool: plan for plan in shift_plan.plan(document.value, curves)}
    return [
        Pool(name, instances.load()[pool.types[0]], pool.size.max, *_find_shift(plans.get(name), pool.size.max))
        for name, pool in document.value.pools.items()
    ]


def _find_shift(plan: PoolPlan | None, most: int) -> tuple[int, int]:
    """Return the instances of real time at noon, and the most until the evening."""
    if plan is None:
        return most, most
    noon, evening = (hour * 3600 // STEP_S for hour in (NOON_H, EVENING_H))
    real_time = [allocation.real_time for allocation in plan.allocations[noon : evening + 1]]
    return real_time[0], max(real_time)


def count(pool: Pool) -> int:
    """Return the accelerators of a node, 1 where the type has none."""
    return pool.instance.accelerators.count if pool.instance.accelerators else 1


class Shift:
    """The evening, on a control plane that has no nodes yet."""

    def __init__(self, plane: ControlPlane, pools: Sequence[Pool], batch_accelerators: int) -> None:
        self._plane, self._pools, self._batch_accelerators = plane, pools, batch_accelerators
        self._made = 0
        programs = {process.name(): process for process in psutil.Process().children(recursive=True)}
        self._programs = {_PROGRAMS[name]: process for name, process in programs.items() if name in _PROGRAMS}

    def run(self) -> Iterator[Step]:
        """Yield the steps.

        Raises:
            Unavailable: a step did not end in time, or more was preempted than must be.
        """
        self._plane.api.apply([*_build_classes(), _build_account()])
        for pool in self._pools:
            for node in machines.build_for_type(pool.instance, pool.nodes, pool.name, **{"fleet/pool": pool.name}):
                self._post("/api/v1/nodes", node)
        processes.wait_until(self._knows_classes, "the classes of priority", LIMIT_S)
        grown = {pool.name: pool.evening - pool.noon for pool in self._pools}
        yield self._time("place", {pool.name: pool.noon for pool in self._pools}, self._count_batch_pods())
        yield self._time("shift", grown, {})
        for name in self._list_names(f"shift-{REAL_TIME}"):
            self._plane.request("delete", f"/api/v1/namespaces/{PLACE}/pods/{name}")
        yield self._time("return", {}, {name: nodes * self._count_on_node(name) for name, nodes in grown.items()})

    def _knows_classes(self) -> bool:
        """Return whether the API server gives pods the priority of each class: it learns of new ones by watching."""
        path = f"/api/v1/namespaces/{PLACE}/pods?dryRun=All"
        try:
            pods = [self._post(path, _build_pod(name, self._pools[0], name, 1)) for name in PRIORITIES]
        except ForbiddenError:
            return False
        return [json.loads(pod.data)["spec"]["priority"] for pod in pods] == list(PRIORITIES.values())

    def _count_batch_pods(self) -> dict[str, int]:
        return {pool.name: (pool.nodes - pool.noon) * self._count_on_node(pool.name) for pool in self._pools}

    def _count_on_node(self, name: str) -> int:
        """Return the batch pods that fill a node of a pool."""
        pool = next(pool for pool in self._pools if pool.name == name)
        return max(1, count(pool) // self._batch_accelerators)

    def _time(self, name: str, real_time: Mapping[str, int], batch: Mapping[str, int]) -> Step:
        """Create pods by pool, and wait until all of them are placed."""
        before, batch_before = self._read_cpu_s(), len(self._list_names("", BATCH))
        started = time.monotonic()
        pods = [pod for pool in self._pools for pod in self._build_pods(name, pool, real_time, batch)]
        for pod in pods:
            self._post(f"/api/v1/namespaces/{PLACE}/pods", pod)
        while waiting := len(self._list_names(f"{name}-", is_placed=False)):
            if time.monotonic() - started > LIMIT_S:
                raise Unavailable(f"{name}: {waiting} of {len(pods)} pods wait for a node after {LIMIT_S:.0f} s")
            time.sleep(0.5)
        seconds, after = time.monotonic() - started, self._read_cpu_s()
        preempted = batch_before + sum(batch.values()) - len(self._list_names("", BATCH))
        cpu_s = {program: round(after[program] - before[program], 1) for program in after}
        return Step(name, len(pods), preempted, round(seconds, 1), cpu_s)

    def _build_pods(
        self, step: str, pool: Pool, real_time: Mapping[str, int], batch: Mapping[str, int]
    ) -> Iterator[Manifest]:
        for priority, numbers, accelerators in (
            (REAL_TIME, real_time, count(pool)),
            (BATCH, batch, min(self._batch_accelerators, count(pool))),
        ):
            for number in range(numbers.get(pool.name, 0)):
                yield _build_pod(f"{step}-{priority}-{pool.name}-{number}", pool, priority, accelerators)

    def _list_names(self, prefix: str, priority: str = "", *, is_placed: bool | None = None) -> list[str]:
        """List the pods whose names begin so; with `is_placed`, those that have a node or none."""
        query = f"labelSelector=priority={priority}&" if priority else ""
        query += "fieldSelector=spec.nodeName=&" if is_placed is False else ""
        path = f"/api/v1/namespaces/{PLACE}/pods?{query}"
        items = json.loads(self._plane.request("get", path).data)["items"]
        return [item["metadata"]["name"] for item in items if item["metadata"]["name"].startswith(prefix)]

    def _post(self, path: str, manifest: Manifest) -> Any:
        return self._plane.request("post", path, manifest)

    def _read_cpu_s(self) -> dict[str, float]:
        times = {name: process.cpu_times() for name, process in self._programs.items()}
        return {name: spent.user + spent.system for name, spent in times.items()}


def _build_classes() -> Iterator[Manifest]:
    for name, value in PRIORITIES.items():
        yield {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
        }


def _build_account() -> Manifest:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": PLACE}}


def _build_pod(name: str, pool: Pool, priority: str, accelerators: int) -> Manifest:
    """Build a pod that goes at once when it is preempted, since no kubelet ends it."""
    device = pool.instance.accelerators.device if pool.instance.accelerators else "cpu"
    container = {"name": "engine", "image": "engine", "resources": {"limits": {device: accelerators}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"priority": priority}},
        "spec": {
            "priorityClassName": priority,
            "terminationGracePeriodSeconds": 0,
            "nodeSelector": {"fleet/pool": pool.name},
            "tolerations": [{"key": device, "operator": "Exists"}],
            "containers": [container],
        },
    }


def render(steps: Sequence[Step]) -> Table:
    table = Table("step", box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for heading in ("pods", "preempted", "s", *(f"{name} CPU-s" for name in _PROGRAMS.values())):
        table.add_column(heading, justify="right")
    for step in steps:
        cpu_s = (f"{step.cpu_s[name]:.1f}" for name in _PROGRAMS.values())
        table.add_row(step.name, str(step.pods), str(step.preempted), f"{step.seconds:.1f}", *cpu_s)
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
