"""Resources of a batch on AWS besides its processes: a state machine with queues, containers, schedules."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import cast
from urllib.parse import urlsplit

from llm_serving.catalog import own_image
from llm_serving.fleet import aws_limits, groups, names
from llm_serving.fleet.model import Fleet
from llm_serving.fleet.pool import Orchestrator
from llm_serving.kinds.batch import worker_settings
from llm_serving.kinds.batch.blueprint import SECURITY_GROUP, Blueprint, Schedule
from llm_serving.kinds.batch.stack import BatchStack, ResultsTable
from llm_serving.services import addresses, orchestrators, team_keys
from llm_serving.services.deployment import FoundDeployment
from llm_serving.services.environment import Environment
from llm_serving.services.service import PRE_STOP_S, Call, Placement, Replicas, Resources, Service, Stop, Toleration
from llm_serving.services.team_keys import Secret
from llm_serving.settings.document import Conflict

MAX_QUEUE_NAME = 80
"""Maximum characters of a queue's name, and of a state machine's. Sources: SQS API reference, CreateQueue; Step
Functions API reference, CreateStateMachine; 2026-11."""

MAX_RULE_NAME = 64
"""Maximum characters of a rule's name, and of a schedule's. Sources: EventBridge API reference, PutRule; EventBridge
Scheduler API reference, CreateSchedule; 2026-11."""

CPUS, MEMORY_BYTES = 1, 2 * 2**30
"""CPUs and memory of a container: Fargate's minimum memory for a core. A worker in Python uses one core. Source: ECS
developer guide, "Fargate task definition differences", task CPU and memory, 2026-11."""

STOP_S, DRAIN_S = 120, 90
"""Seconds from the stop signal until a container is killed: Fargate's maximum, and a spot instance's notice. Rows in
flight may finish until DRAIN_S; then the worker saves finished rows and hands back the rest."""

API_PORT, CACHE_PORT = 8080, 6379

READY_FILE = "/tmp/batch-worker.ready"
"""File that exists once a worker takes steps; until then a rollout keeps the previous workers."""


def resolve(settings: Blueprint, fleet: Fleet, environment: Environment, name: str) -> BatchStack:
    """Resolve the data of the stack of the batch `name`."""
    workflow = names.format_deployment_name(fleet, name)
    queues = worker_settings.name_queues(workflow, settings.teams)
    return BatchStack(
        orchestrator=cast(Orchestrator, environment.conventions.orchestrator),
        workflow=workflow,
        bucket=environment.results_bucket,
        prefix=worker_settings.build_prefix(name),
        inputs=settings.inputs,
        takeover_s=math.ceil(settings.limits.takeover),
        control_queue=queues.control,
        inbox_queue=queues.inbox,
        uncached_queue=queues.uncached if settings.results.cache else "",
        run_queues=tuple(_name_run_queues(settings, workflow)),
        # Athena allows no dash. Source: Athena user guide, "Name databases, tables, and columns", 2026-11.
        results_table=ResultsTable(database=workflow.replace("-", "_"), teams=tuple(settings.teams))
        if settings.results.parquet
        else None,
        schedules={key: _complete_schedule(settings, schedule) for key, schedule in settings.schedules.items()},
    )


def build_container(
    service: Service, settings: Blueprint, fleet: Fleet, environment: Environment, answering: FoundDeployment
) -> Service:
    """Return a worker, or the Batch API, as a container on AWS."""
    is_worker = not service.is_entry
    is_called = service.is_entry and environment.conventions.is_kubernetes
    cache = settings.results.cache if is_worker else None
    update = {
        "image": own_image.IMAGES["batch-worker"].format_image(environment.registry, environment.image_digests),
        "resources": Resources(cpus=CPUS, memory_bytes=MEMORY_BYTES),
        "stop": Stop(stop_s=STOP_S, pre_stop_s=PRE_STOP_S if is_called else 0),
        "secrets": team_keys.list_read(
            settings.endpoint.api_key,
            cache.login if cache else None,
            settings.api.keys.stored if settings.api.keys and not is_worker else None,
        ),
        "calls": _list_calls(settings, answering, is_worker=is_worker),
        "clients": () if is_worker else settings.api.clients,
    }
    if is_worker:
        update |= {
            "env": {**service.env, "BATCH_READY_FILE": READY_FILE},
            "replicas": Replicas(min=settings.workers.count, max=settings.workers.count),
            "ready_file": READY_FILE,
            "placement": _find_placement(fleet, settings),
        }
    return service.model_copy(update=update)


def _list_calls(settings: Blueprint, answering: FoundDeployment, *, is_worker: bool) -> dict[str, Call]:
    """List what a container connects to beside AWS, by name."""
    port, cache = addresses.find_port(answering.url), settings.results.cache
    deployment = settings.endpoint.deployment or ""
    calls = {
        "endpoint": Call(
            purpose="Rows, and counts of their tokens", port=port, deployment=deployment, in_network=bool(deployment)
        )
    }
    if is_worker and deployment and answering.metrics_urls:
        labels, metrics_port = {"inference/kind": "engine"}, addresses.find_port(answering.metrics_urls[0])
        calls["metrics"] = Call(purpose="Metrics of engines", port=metrics_port, deployment=deployment, labels=labels)
    if is_worker and cache:
        calls["cache"] = Call(purpose="Answers for servers", port=urlsplit(cache.url).port or CACHE_PORT)
    return calls


def _name_run_queues(settings: Blueprint, workflow: str) -> dict[str, str]:
    """Return the team of each queue of chunks, by the queue's name."""
    runs = worker_settings.name_queues(workflow, settings.teams).runs
    return {queue: team for team, by_priority in runs.items() for queue in by_priority.values()}


def check(settings: Blueprint, fleet: Fleet, environment: Environment, name: str) -> Iterator[Conflict]:
    """Yield names that AWS refuses, and what no container reaches or runs on."""
    workflow = names.format_deployment_name(fleet, name)
    yield from orchestrators.check(fleet, environment.conventions, ("kind",), settings.kind)
    yield from _find_long_names(_name_run_queues(settings, workflow))
    yield from _find_long_rules(settings, workflow, name)
    yield from _find_unreachable(settings, environment)
    yield from _find_unfit_pool(settings, fleet, environment)
    yield from _find_long_deadlines(settings, fleet)
    for key_path, secret in list_secrets(settings):
        yield from team_keys.check_region(secret, key_path, environment, "a batch")
    yield from _find_foreign_clients(settings, environment)


def check_replicas(settings: Blueprint, environment: Environment) -> Iterator[Conflict]:
    """Yield a batch's own replicas, which only this machine can run."""
    title = environment.conventions.title
    if settings.endpoint.model is not None:
        reason = f"on {title} a batch starts no replicas: it feeds a serving deployment, or a URL"
        fix = (
            f"run blueprint deploy NAME --target {environment.target} of a serving blueprint with this model, then "
            "endpoint: {deployment: NAME}"
        )
        yield Conflict(("endpoint", "model"), reason, fix, settings.endpoint.model)


def list_secrets(settings: Blueprint) -> list[tuple[tuple[str, ...], Secret]]:
    """List the secrets of a blueprint, each with its key in the file."""
    cache = settings.results.cache
    written = (
        (("endpoint", "api_key"), settings.endpoint.api_key),
        (("results", "cache", "login"), cache and cache.login),
        (("api", "keys"), settings.api.keys and settings.api.keys.stored),
    )
    return [(key_path, secret) for key_path, secret in written if secret]


def format_state_machine(environment: Environment, workflow: str) -> str:
    """Return the ARN of the state machine, whose executions the Batch API starts.

    Source: Step Functions developer guide, "Resource types defined by AWS Step Functions", 2026-11.
    """
    region = environment.region
    return f"arn:{names.find_partition(region)}:states:{region}:{environment.account}:stateMachine:{workflow}"


def _find_placement(fleet: Fleet, settings: Blueprint) -> Placement:
    """Find the workers' nodes: those of a pool on EKS; without a pool, any node without taints, or Fargate."""
    pool, spot = settings.workers.pool, settings.workers.spot
    if pool is None:
        return Placement(spot=spot)
    pool_groups = groups.resolve_pool(fleet, pool)
    taints = dict.fromkeys(taint for group in pool_groups for taint in group.taints)
    return Placement(
        labels={"fleet/pool": pool},
        tolerations=tuple(Toleration(key=taint.key, value=taint.value, effect=taint.effect) for taint in taints),
        spot=spot,
        queue=pool if fleet.add_ons.schedulers else "",
    )


def _find_unfit_pool(settings: Blueprint, fleet: Fleet, environment: Environment) -> Iterator[Conflict]:
    pool, key_path = settings.workers.pool, ("workers", "pool")
    if pool is None:
        return
    if environment.conventions.runs_tasks:
        reason = f"workers on {environment.conventions.title} run on Fargate, which has no pools"
        yield Conflict(key_path, reason, "leave pool out", pool)
        return
    fitting = [
        name
        for name, pool in fleet.pools.items()
        if fleet.get_orchestrator(pool) == environment.conventions.orchestrator
    ]
    if pool not in fitting:
        reason = f"the fleet {fleet.name} has no such pool on {environment.conventions.title}"
        yield Conflict(key_path, reason, f"use one of {', '.join(fitting)}, or no pool", pool)


def _complete_schedule(settings: Blueprint, schedule: Schedule) -> Schedule:
    team = schedule.team or next(iter(settings.teams))
    priority = schedule.priority or settings.teams[team].priority
    return schedule.model_copy(update={"team": team, "priority": priority})


def _find_long_rules(settings: Blueprint, workflow: str, name: str) -> Iterator[Conflict]:
    schedules = [("schedules", schedule, f"{workflow}-{schedule}") for schedule in settings.schedules]
    for key, value, rule in [("name", name, f"{workflow}-inbox"), *schedules]:
        if len(rule) > MAX_RULE_NAME:
            reason = f"the rule {rule} would have {len(rule)} characters, and EventBridge takes {MAX_RULE_NAME}"
            fix = "choose a shorter name of the schedule, the blueprint or the fleet"
            yield Conflict((key,), reason, fix, value)
            return


def _find_long_names(run_queues: Mapping[str, str]) -> Iterator[Conflict]:
    longest = max(run_queues, key=len)
    if len(longest) > MAX_QUEUE_NAME:
        reason = f"the queue {longest} would have {len(longest)} characters, and SQS takes {MAX_QUEUE_NAME}"
        yield Conflict(
            ("teams",), reason, "choose a shorter name of the team, the blueprint or the fleet", run_queues[longest]
        )


def _find_unreachable(settings: Blueprint, environment: Environment) -> Iterator[Conflict]:
    cache = settings.results.cache
    urls = ((("endpoint", "url"), settings.endpoint.url), (("results", "cache", "url"), cache.url if cache else None))
    for key_path, url in urls:
        yield from addresses.check_reachable(url, key_path, f"workers on {environment.conventions.title} do not reach")


def _find_long_deadlines(settings: Blueprint, fleet: Fleet) -> Iterator[Conflict]:
    """Yield deadlines of jobs whose first rows S3 deletes before the last ones may have run."""
    kept_s = fleet.storage.results_kept
    deadlines = {("teams", name, "deadline"): team.deadline for name, team in settings.teams.items()}
    for key_path, deadline_s in ((("limits", "deadline"), settings.limits.deadline), *deadlines.items()):
        if deadline_s is not None and deadline_s > kept_s:
            days = aws_limits.convert_to_days(kept_s)
            setting = "storage.results_kept of the fleet"
            reason = f"S3 deletes what a job has saved {days} days after it was written: {setting}"
            fix = f"use {days}d or less, or keep results for longer"
            yield Conflict(key_path, reason, fix, f"{deadline_s / 86_400:g}d")


def _find_foreign_clients(settings: Blueprint, environment: Environment) -> Iterator[Conflict]:
    """Pods share their nodes' security groups, and tasks have no namespace."""
    is_kubernetes = environment.conventions.is_kubernetes
    for client in settings.api.clients:
        is_group = client.startswith(SECURITY_GROUP)
        if is_group if is_kubernetes else not is_group and "/" not in client:
            reason = f"on {environment.conventions.title} it names nobody"
            fix = "name a namespace" if is_kubernetes else "name a security group, sg-ID"
            yield Conflict(("api", "clients"), reason, f"{fix}, or a range of addresses", client)
        elif client.endswith("/0") and not is_kubernetes:
            reason = "it is every address, and the stack of tasks has no open security group"
            yield Conflict(("api", "clients"), reason, "name the ranges of your clients", client)
