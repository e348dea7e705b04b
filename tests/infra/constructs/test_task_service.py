"""How many tasks of a service run while it is rolled out."""

from __future__ import annotations

import pytest

from infra.constructs import task_service
from llm_serving.services.service import Placement, Replicas, Service


@pytest.mark.parametrize(
    ("pool", "replicas", "percents"),
    [
        ("general", Replicas(min=4, max=4, unavailable=1), (75, 100)),
        ("general", Replicas(min=1, max=1, unavailable=1), (0, 100)),
        ("general", Replicas(min=1, max=1, unavailable=1, surge=1), (100, 200)),
        ("general", Replicas(min=4, max=4, unavailable=1, surge=1), (100, 125)),
        ("general", Replicas(min=3, max=3, unavailable=1, surge=1), (100, 134)),
        ("", Replicas(min=2, max=2), (100, 200)),
    ],
)
def test_a_rollout_stops_old_tasks_first_unless_it_may_start_new_ones(
    pool: str, replicas: Replicas, percents: tuple[int, int]
) -> None:
    """ECS rounds the most percent down to whole tasks, so 133 of three would start none."""
    service = Service.model_construct(placement=Placement.model_construct(pool=pool), replicas=replicas)
    assert task_service._compute_healthy_percent(service) == percents
