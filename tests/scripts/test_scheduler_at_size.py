"""The benchmark of the real scheduler, on a few nodes: who is preempted, and that nobody is without a priority."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from llm_serving.catalog import instances
from llm_serving.operations.kube_api import POD, Kind
from llm_serving.settings.errors import Unavailable
from scripts import scheduler_at_size
from scripts.scheduler_at_size import Pool, Shift
from tests.control_plane.control_plane import NODE, ControlPlane

CLASS = Kind("scheduling.k8s.io/v1", "PriorityClass")

pytestmark = pytest.mark.timeout(600, func_only=True)


@pytest.fixture
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """The control plane; what the benchmark creates goes."""
    yield control_plane
    classes = [(CLASS, f"metadata.name={name}") for name in scheduler_at_size.PRIORITIES]
    for kind, fields in ((POD, f"metadata.namespace={scheduler_at_size.PLACE}"), (NODE, ""), *classes):
        control_plane.api.delete_all(kind, fields=fields, timeout_s=60)


def build_pools() -> list[Pool]:
    """Four nodes that shift two, and one that shifts none."""
    catalog = instances.load()
    return [Pool("ranking", catalog["g6e.48xlarge"], 4, 1, 3), Pool("large", catalog["p5.48xlarge"], 1, 1, 1)]


@pytest.mark.parametrize("batch_accelerators", [1, 8])
def test_real_time_takes_whole_nodes_from_batch_and_gives_them_back(
    plane: ControlPlane, batch_accelerators: int
) -> None:
    place, shift, returned = Shift(plane, build_pools(), batch_accelerators).run()
    on_node = 8 // batch_accelerators
    assert (place.pods, place.preempted) == (2 + 3 * on_node, 0)
    assert (shift.pods, shift.preempted) == (2, 2 * on_node), "no batch pod too many"
    assert (returned.pods, returned.preempted) == (2 * on_node, 0)
    assert all(shift.cpu_s[program] >= 0 for program in ("scheduler", "API server", "etcd"))


def test_without_a_priority_nothing_is_preempted(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_at_size, "PRIORITIES", dict.fromkeys(scheduler_at_size.PRIORITIES, 0))
    steps = Shift(plane, build_pools(), 8).run()
    next(steps)
    monkeypatch.setattr(scheduler_at_size, "LIMIT_S", 2.0)
    with pytest.raises(Unavailable) as error:
        next(steps)
    assert str(error.value) == "shift: 2 of 2 pods wait for a node after 2 s"


def test_the_evening_of_ads_scale_moves_as_many_instances_as_the_plan_does() -> None:
    pools = scheduler_at_size.read_pools(scheduler_at_size.FLEET, scheduler_at_size.TRAFFIC)
    assert sum(pool.nodes * scheduler_at_size.count(pool) for pool in pools) == 10_688
    grown = {pool.name: pool.evening - pool.noon for pool in pools}
    assert grown["large"] == grown["spanning"] == 0, "reserved"
    assert all(grown[name] > 0 for name in ("ranking", "retrieval", "large-elsewhere"))
