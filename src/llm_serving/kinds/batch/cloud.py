"""Resources of a batch on AWS besides its processes: a state machine with queues, containers, schedules."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from pydantic import Field

from llm_serving.catalog import instances, own_image
from llm_serving.fleet import groups, names
from llm_serving.fleet.model import Fleet, parse_arn_region
from llm_serving.kinds.batch import secrets, worker_settings
from llm_serving.kinds.batch.blueprint import Blueprint, Schedule
from llm_serving.services.deployments import WORKER_PORT
from llm_serving.services.environment import Environment
from llm_serving.services.service import ResolvedData, Secret, Toleration
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


class WorkerNodes(ResolvedData):
    """Nodes of the workers on EKS; empty on other targets."""

    labels: dict[str, str] = Field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    queue: str = ""
    """Kueue's LocalQueue of the pool; empty without Kueue."""


class CloudParts(ResolvedData):
    """Resources of a batch on AWS, and the values that its containers need."""

    workflow: str
    """FLEET-NAME: name of the state machine, and prefix of the queues' names."""

    state_machine: str
    """ARN of the state machine, whose executions the Batch API starts."""

    control_queue: str
    inbox_queue: str
    run_queues: tuple[str, ...]
    """Queues of chunks, one for each team and priority."""

    image: str
    cpus: int
    """Cores of each container."""

    memory_bytes: int
    stop_s: int
    spot: bool
    """Whether workers run on spot capacity."""

    inputs: tuple[str, ...]
    """More S3 locations to read inputs from."""

    endpoint_port: int
    endpoint_deployment: str
    """Name of the deployment that answers the rows in the fleet's network; empty for an endpoint anywhere."""

    metrics_port: int
    """Port of that deployment's engines."""

    cache_port: int | None
    """Port of the cache in the fleet's network; None for no cache."""

    worker_secrets: tuple[Secret, ...]
    api_secrets: tuple[Secret, ...]
    """Secrets of AWS Secrets Manager that each may read."""

    results_database: str
    """Database of the table over Parquet results; empty for none."""

    schedules: dict[str, Schedule]
    """Schedules with team and priority filled in."""

    nodes: WorkerNodes


def resolve(settings: Blueprint, fleet: Fleet, environment: Environment, name: str, endpoint_url: str) -> CloudParts:
    """Resolve the AWS resources of the batch `name`."""
    workflow = _format_workflow(fleet, name)
    queues = worker_settings.name_queues(workflow, settings.teams)
    endpoint, cache = urlsplit(endpoint_url), settings.results.cache
    api_key, login = settings.endpoint.api_key, cache.login if cache else None
    return CloudParts(
        workflow=workflow,
        state_machine=_format_state_machine(environment, workflow),
        control_queue=queues.control,
        inbox_queue=queues.inbox,
        run_queues=tuple(_name_run_queues(settings, workflow)),
        image=own_image.IMAGES["batch-worker"].format_image(environment.registry),
        cpus=CPUS,
        memory_bytes=MEMORY_BYTES,
        stop_s=STOP_S,
        spot=settings.workers.spot,
        inputs=settings.inputs,
        endpoint_port=endpoint.port or (443 if endpoint.scheme == "https" else 80),
        endpoint_deployment=settings.endpoint.deployment or "",
        metrics_port=WORKER_PORT,
        cache_port=(urlsplit(cache.url).port or CACHE_PORT) if cache else None,
        worker_secrets=secrets.list_read(api_key, login),
        api_secrets=secrets.list_read(api_key),
        # Athena allows no dash. Source: Athena user guide, "Name databases, tables, and columns", 2026-11.
        results_database=workflow.replace("-", "_") if settings.results.parquet else "",
        schedules={key: _complete_schedule(settings, schedule) for key, schedule in settings.schedules.items()},
        nodes=_find_nodes(fleet, settings.workers.pool),
    )


def _format_workflow(fleet: Fleet, name: str) -> str:
    return f"{fleet.name}-{name}"


def _name_run_queues(settings: Blueprint, workflow: str) -> dict[str, str]:
    """Return the team of each queue of chunks, by the queue's name."""
    runs = worker_settings.name_queues(workflow, settings.teams).runs
    return {queue: team for team, by_priority in runs.items() for queue in by_priority.values()}


def check(settings: Blueprint, fleet: Fleet, environment: Environment, name: str) -> Iterator[Conflict]:
    """Yield names that AWS refuses, and what no container reaches or runs on."""
    workflow = _format_workflow(fleet, name)
    yield from _find_long_names(_name_run_queues(settings, workflow))
    yield from _find_long_rules(settings, workflow, name)
    yield from _find_unreachable(settings, environment)
    yield from _find_unfit_pool(settings, fleet, environment)
    yield from _find_foreign_secrets(settings, environment)


def check_replicas(settings: Blueprint, environment: Environment) -> Iterator[Conflict]:
    """Yield a batch's own replicas, which only this machine can run."""
    title = environment.conventions.title
    if settings.endpoint.model is not None:
        reason = f"on {title} a batch starts no replicas: it feeds a serving deployment, or a URL"
        fix = (
            f"blueprint deploy NAME --target {environment.target} of a serving blueprint with this model, then "
            "endpoint: {deployment: NAME}"
        )
        yield Conflict(("endpoint", "model"), reason, fix, settings.endpoint.model)


def list_secrets(settings: Blueprint) -> list[tuple[tuple[str, ...], secrets.Secret]]:
    """List the secrets of a blueprint, each with its key in the file."""
    cache = settings.results.cache
    written = (
        (("endpoint", "api_key"), settings.endpoint.api_key),
        (("results", "cache", "login"), cache and cache.login),
    )
    return [(key_path, secret) for key_path, secret in written if secret]


def _format_state_machine(environment: Environment, workflow: str) -> str:
    """Source: Step Functions developer guide, "Resource types defined by AWS Step Functions", 2026-11."""
    region = environment.region
    return f"arn:{names.find_partition(region)}:states:{region}:{environment.account}:stateMachine:{workflow}"


def _find_nodes(fleet: Fleet, pool: str | None) -> WorkerNodes:
    """Find the nodes of a pool on EKS; without a pool, any node without taints."""
    if pool is None:
        return WorkerNodes()
    pool_groups = groups.resolve_pool(fleet, pool, instances.load())
    taints = dict.fromkeys(taint for group in pool_groups for taint in group.taints)
    return WorkerNodes(
        labels={"fleet/pool": pool},
        tolerations=tuple(Toleration(key=taint.key, value=taint.value, effect=taint.effect) for taint in taints),
        queue=pool if fleet.add_ons.schedulers else "",
    )


def _find_unfit_pool(settings: Blueprint, fleet: Fleet, environment: Environment) -> Iterator[Conflict]:
    pool, key_path = settings.workers.pool, ("workers", "pool")
    if pool is None:
        return
    if environment.conventions.fargate:
        reason = f"workers on {environment.conventions.title} run on Fargate, which has no pools"
        yield Conflict(key_path, reason, "no pool", pool)
        return
    fitting = [
        name
        for name, other in fleet.pools.items()
        if fleet.get_orchestrator(other) == environment.conventions.orchestrator
    ]
    if pool not in fitting:
        reason = f"the fleet {fleet.name} has no such pool on {environment.conventions.title}"
        yield Conflict(key_path, reason, f"one of {', '.join(fitting)}, or no pool", pool)


def _complete_schedule(settings: Blueprint, schedule: Schedule) -> Schedule:
    team = schedule.team or next(iter(settings.teams))
    return schedule.model_copy(update={"team": team, "priority": schedule.priority or settings.teams[team].priority})


def _find_long_rules(settings: Blueprint, workflow: str, name: str) -> Iterator[Conflict]:
    schedules = [("schedules", schedule, f"{workflow}-{schedule}") for schedule in settings.schedules]
    for key, value, rule in [("name", name, f"{workflow}-inbox"), *schedules]:
        if len(rule) > MAX_RULE_NAME:
            reason = f"the rule {rule} would have {len(rule)} characters, and EventBridge takes {MAX_RULE_NAME}"
            fix = "a shorter name of the schedule, the blueprint or the fleet"
            yield Conflict((key,), reason, fix, value)
            return


def _find_long_names(run_queues: Mapping[str, str]) -> Iterator[Conflict]:
    longest = max(run_queues, key=len)
    if len(longest) > MAX_QUEUE_NAME:
        reason = f"the queue {longest} would have {len(longest)} characters, and SQS takes {MAX_QUEUE_NAME}"
        yield Conflict(
            ("teams",), reason, "a shorter name of the team, the blueprint or the fleet", run_queues[longest]
        )


def _find_unreachable(settings: Blueprint, environment: Environment) -> Iterator[Conflict]:
    cache = settings.results.cache
    urls = ((("endpoint", "url"), settings.endpoint.url), (("results", "cache", "url"), cache and cache.url))
    for key_path, url in urls:
        if _is_loopback(urlsplit(url or "").hostname or ""):
            reason = f"workers on {environment.conventions.title} do not reach this machine"
            yield Conflict(key_path, reason, "an address in the fleet's network", url)


def _find_foreign_secrets(settings: Blueprint, environment: Environment) -> Iterator[Conflict]:
    """Secrets Manager's endpoint of a region has that region's secrets alone."""
    for key_path, secret in list_secrets(settings):
        if secret.secret.startswith("arn:") and parse_arn_region(secret.secret) != environment.region:
            reason = f"a batch on {environment.conventions.title} reads secrets of its own region, {environment.region}"
            fix = f"a secret of {environment.region}, such as a replica of this one"
            yield Conflict((*key_path, "secret"), reason, fix, secret.secret)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
