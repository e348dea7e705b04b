"""What the target `ecs` does in its own way: services of tasks that find one another in a private DNS namespace."""

from __future__ import annotations

from llm_serving.catalog.ecs import MAX_TASKS
from llm_serving.services.environment import Conventions

CONVENTIONS = Conventions(
    title="ECS",
    orchestrator="ecs",
    max_replicas=MAX_TASKS,
    # ECS lets 500 tasks of a cluster wait for an instance, and starts no other beyond that. What first choices leave is
    # shared by the others (infra.functions.ecs_fallback). Source: ECS developer guide, "Amazon ECS service quotas".
    max_waiting=400,
    # Where fleet/ecs_node_config.py mounts them.
    node_disk="/mnt/instance-store",
    runs_tasks=True,
    url="http://{deployment}-router.{namespace}:{port}",
)
