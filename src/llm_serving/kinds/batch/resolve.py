"""Decides every number of a batch deployment, once: blueprint + fleet + environment -> `BatchDeployment`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from llm_serving.catalog import engines
from llm_serving.catalog.engines import EngineMetric
from llm_serving.fleet.model import Fleet
from llm_serving.kinds.batch import cloud as cloud_parts
from llm_serving.kinds.batch import secrets
from llm_serving.kinds.batch.blueprint import Blueprint, Cache, Endpoint
from llm_serving.kinds.batch.cloud import CloudParts
from llm_serving.kinds.batch.deployment import BatchDeployment
from llm_serving.kinds.serving import blueprint as serving_blueprints
from llm_serving.kinds.serving import resolve as serving
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.kinds.serving.price import price_deployment
from llm_serving.kinds.serving.processes import ENGINE_PORT, ROUTER_PORT
from llm_serving.kinds.serving.roles import EngineRole, Roles
from llm_serving.services import inputs, kinds
from llm_serving.services.blueprint import DEFAULT_KIND, FILE_NAME, resolve_name
from llm_serving.services.environment import Environment, Probe, Process
from llm_serving.services.traffic import Percentiles, Slo, Traffic
from llm_serving.settings.document import Document, raise_mistakes
from llm_serving.settings.errors import InputError, Mistake
from llm_serving.settings.units import Bounds

API = "batch-api"
WORKER = "batch-worker"
"""Names of the processes, and of the programs in images/batch-worker."""

WORKER_BYTES = 400_000_000
"""Memory of a worker: two chunks of 16 MiB with their results for each team that has rows, and Python."""

API_BYTES = 200_000_000
API_DEADLINE_S = 120.0
RESTART_S = 1
"""Seconds after which a worker counts as started: it may be killed at any time, and restarts."""

METRICS_PATH = "/metrics"
"""Path of vLLM's metrics, which workers read."""

ENGINE_PRIORITIES = "high:1,normal:2,low:3"
"""`priority` of requests by the class of their job: the engine runs the lowest first; the default is 0."""

STATE_MACHINE_FILE = Path(__file__).with_name("state_machine.asl.json")


def list_port_names(blueprint: Blueprint) -> list[str]:
    """List the ports that a target must choose if processes share one machine."""
    own_serving = _build_serving_settings(blueprint.endpoint, "batch")
    return [API, *(serving.list_port_names(own_serving) if own_serving else [])]


def resolve(blueprint: Document[Blueprint], fleet: Document[Fleet], environment: Environment) -> BatchDeployment:
    """Resolve the blueprint on the fleet, in the environment of its target.

    Raises:
        InputError: it cannot work; has every reason with its line of the blueprint.
    """
    settings, name = blueprint.value, resolve_name(blueprint)
    in_containers = environment.conventions.containers
    if in_containers:
        raise_mistakes(blueprint.locate(cloud_parts.check_replicas(settings, environment)))
    own_serving = _resolve_serving(blueprint, fleet, environment, name)
    answering = _find_endpoint(blueprint, own_serving, environment)
    price = _price_endpoint(blueprint, fleet, environment)
    usd_h = settings.endpoint.usd_per_hour or (price and price[0])
    cloud = None
    if in_containers:
        raise_mistakes(blueprint.locate(cloud_parts.check(settings, fleet.value, environment, name)))
        cloud = cloud_parts.resolve(settings, fleet.value, environment, name, answering.url)
    variables = _build_variables(settings, environment, name, cloud, answering.url)
    port = environment.ports.get(API, cloud_parts.API_PORT)
    return BatchDeployment(
        name=name,
        pattern=settings.pattern,
        target=environment.target,
        fleet=fleet.value.name,
        environment=environment,
        url=_format_url(environment, name, port),
        endpoint_url=answering.url,
        model=own_serving.served_models[0].name if own_serving else "",
        metrics_urls=answering.metrics_urls,
        serving=own_serving,
        usd_h=usd_h,
        bucket=_choose_bucket(environment),
        prefix=_build_prefix(name),
        teams=dict(settings.teams),
        limits=settings.limits,
        sample=settings.sample,
        slo=settings.slo,
        workers=tuple(
            _build_worker(settings, environment, variables, None if cloud else index, answering)
            for index in range(settings.workers.count)
        ),
        api=_build_api(environment, variables, port, usd_h, cloud),
        cloud=cloud,
        notes=(*(own_serving.notes if own_serving else ()), *_list_notes(settings, environment, answering, price)),
        emulated=own_serving.emulated if own_serving else environment.emulated,
    )


def _choose_bucket(environment: Environment) -> str:
    return environment.results_bucket or environment.bucket


def _build_prefix(name: str) -> str:
    return f"batch/{name}"


def _build_variables(
    settings: Blueprint, environment: Environment, name: str, cloud: CloudParts | None, endpoint_url: str
) -> dict[str, str]:
    """Build the variables of workers and Batch API."""
    return {
        **environment.env,
        "BATCH_NAME": cloud.workflow if cloud else name,
        "BATCH_BUCKET": _choose_bucket(environment),
        "BATCH_PREFIX": _build_prefix(name),
        "BATCH_TEAMS": ",".join(
            f"{team_name}:{team.weight}:{team.priority}:{team.tokens_per_day or 0}"
            + ("" if team.deadline is None else f":{team.deadline:g}")
            for team_name, team in settings.teams.items()
        ),
        "BATCH_WORKERS": str(settings.workers.count),
        "BATCH_DEADLINE_S": f"{settings.limits.deadline:g}",
        "BATCH_BAD_ROWS": settings.limits.bad_rows,
        "BATCH_CHUNK_BYTES": str(settings.limits.chunk),
        "BATCH_FAILED_CHUNKS": f"{settings.limits.failed_chunks:g}",
        "BATCH_TAKEOVER_S": f"{settings.limits.takeover:g}",
        "BATCH_ENDPOINT": endpoint_url,
        "BATCH_PARQUET": "1" if settings.results.parquet else "",
        **(secrets.build_key_variables(settings.endpoint.api_key) if cloud else {}),
    }


def _build_api(
    environment: Environment, variables: Mapping[str, str], port: int, usd_h: float | None, cloud: CloudParts | None
) -> Process:
    if cloud:
        state_machine = {"BATCH_STATE_MACHINE": cloud.state_machine}
    else:
        state_machine = {"BATCH_STATE_MACHINE_FILE": str(STATE_MACHINE_FILE)}
    return Process(
        name=API,
        command=_build_command(environment, API),
        env={
            **variables,
            "BATCH_USD_PER_HOUR": "" if usd_h is None else f"{usd_h:g}",
            "BATCH_API_HOST": environment.conventions.bind_host,
            "BATCH_API_PORT": str(port),
            **state_machine,
        },
        port=port,
        probe=Probe(path="/health", body={}, deadline_s=API_DEADLINE_S),
        start_s=RESTART_S,
        memory_bytes=API_BYTES,
    )


def _format_url(environment: Environment, name: str, port: int) -> str:
    conventions = environment.conventions
    if conventions.shared_host:
        return conventions.url.format(deployment=name, namespace=environment.namespace, port=port)
    return (
        f"http://{conventions.peer_name.format(deployment=name, service=API, namespace=environment.namespace)}:{port}"
    )


def _list_notes(
    settings: Blueprint, environment: Environment, answering: _Answering, price: tuple[float, str] | None
) -> Iterator[str]:
    if settings.endpoint.deployment:
        yield from _describe_back_off(settings.endpoint.deployment, environment, answering)
    if price and settings.endpoint.usd_per_hour is None:
        yield f"Jobs cost their share of {settings.endpoint.deployment}, {price[0]:,.2f} USD/h on demand: {price[1]}."
    if settings.schedules and not environment.conventions.containers:
        yield f"The embedded AWS fires no schedules: no jobs here by {', '.join(settings.schedules)}."
    named = cloud_parts.list_secrets(settings)
    if named and not environment.conventions.containers:
        keys = " and ".join(".".join(key_path) for key_path, _ in named)
        yield f"The embedded AWS has no secrets of yours: here environment variables take the place of {keys}."


def _price_endpoint(
    blueprint: Document[Blueprint], fleet: Document[Fleet], environment: Environment
) -> tuple[float, str] | None:
    """Return what the deployment on AWS that answers the rows costs an hour, and how that is calculated.

    Its blueprint is the folder of its name beside this one. None without that folder, where a price is unknown, and
    where its replicas follow the load: their number then is.
    """
    name = blueprint.value.endpoint.deployment
    folder = blueprint.path.resolve().parent.parent / str(name)
    if name is None or not environment.conventions.containers or not (folder / FILE_NAME).is_file():
        return None
    try:
        fed = inputs.read_blueprint(folder)
        if fed.value.kind != DEFAULT_KIND or resolve_name(fed) != name:
            return None
        deployment: ServingDeployment = kinds.get_for(fed).resolve(fed, fleet, environment)
    except InputError:  # its own deploy reports that
        return None
    if any(role.replicas.min != role.replicas.max for role in deployment.engine_roles):
        return None
    return price_deployment(deployment)


def _describe_back_off(fed: str, environment: Environment, answering: _Answering) -> Iterator[str]:
    """Describe what slows rows down in favor of the shared deployment's own requests."""
    title = environment.conventions.title
    if environment.conventions.containers and answering.metrics_urls:
        yield f"Rows give way to a queue at {fed} alone: on {title} a batch does not know its SLO."
    elif environment.conventions.containers:
        yield f"On {title} workers see no metrics of {fed}: rows give way to its answers 429 and 503, not to its SLO."
    elif answering.limits:
        limits = ", ".join(f"{limit.name} < {limit.ms:g} ms" for limit in answering.limits)
        yield f"Rows give way where {fed} misses {limits}."
    elif answering.metrics_urls:
        yield f"Rows give way to a queue at {fed} alone: its metrics show no percentile of its SLO."


def _build_worker(
    settings: Blueprint,
    environment: Environment,
    variables: Mapping[str, str],
    index: int | None,
    answering: _Answering,
) -> Process:
    """Build a worker; without an index, one of several equal containers, which are named after their hosts."""
    limits, concurrency = settings.limits, settings.workers.concurrency
    name = WORKER if index is None else f"{WORKER}-{index}"
    return Process(
        name=name,
        command=_build_command(environment, WORKER),
        env={
            **variables,
            **(_CONTAINER_VARIABLES if index is None else {"BATCH_WORKER": name}),
            "BATCH_METRICS": ",".join(answering.metrics_urls),
            "BATCH_SHARED": "1" if answering.is_shared else "",
            "BATCH_SLO": ",".join(
                f"{limit.metric}={limit.ms / 1000:g}:{limit.allowed:g}" for limit in answering.limits
            ),
            "BATCH_ENGINE_PRIORITIES": ENGINE_PRIORITIES if answering.has_priority else "",
            "BATCH_CONCURRENCY": f"{concurrency.min}..{concurrency.max}",
            "BATCH_LONG_INPUTS": limits.long_inputs,
            **_build_cache_variables(settings.results.cache, environment),
            "BATCH_ATTEMPTS": str(limits.attempts),
            "BATCH_REQUEST_TIMEOUT_S": f"{limits.request_timeout:g}",
        },
        port=0,
        replica=index or 0,
        start_s=RESTART_S,
        memory_bytes=WORKER_BYTES,
    )


_CONTAINER_VARIABLES = {"BATCH_DRAIN_S": str(cloud_parts.DRAIN_S), "BATCH_READY_FILE": cloud_parts.READY_FILE}
"""Variables of a worker with its own container."""


def _build_cache_variables(cache: Cache | None, environment: Environment) -> dict[str, str]:
    if cache is None:
        return {}
    mode = {"BATCH_CACHE_CLUSTER": "1"} if cache.cluster else {}
    login = secrets.build_login_variables(cache.login) if environment.conventions.containers else {}
    return {"BATCH_CACHE_URL": cache.url, "BATCH_CACHE_TTL_S": f"{cache.ttl:g}", **mode, **login}


def _build_command(environment: Environment, program: str) -> tuple[str, ...]:
    return environment.image_programs.get(program, (program,))


class _Limit(NamedTuple):
    """A limit of the SLO of the deployment that answers the rows."""

    name: str
    """Such as `ttft p95`."""

    metric: str
    """Its histogram in the engines' metrics."""

    ms: float
    allowed: float
    """Share of samples that may be above, 0 to 1: what the percentile allows."""


class _Answering(NamedTuple):
    """The endpoint that answers the rows."""

    url: str
    metrics_urls: tuple[str, ...]
    is_shared: bool
    """Whether it also gets other requests than the workers'."""

    has_priority: bool
    """Whether it schedules by `priority` of a request."""

    limits: tuple[_Limit, ...] = ()
    """Limits of its SLO: workers send fewer rows if these are missed."""


def _find_endpoint(
    blueprint: Document[Blueprint], own_serving: ServingDeployment | None, environment: Environment
) -> _Answering:
    """Find the endpoint that answers the rows.

    Raises:
        InputError: the deployment that it names does not run.
    """
    endpoint = blueprint.value.endpoint
    if own_serving:
        return _Answering(
            own_serving.url, tuple(own_serving.metrics_urls.values()), is_shared=False, has_priority=False
        )
    if endpoint.url:
        url = endpoint.url.rstrip("/").removesuffix("/v1")
        return _Answering(url, endpoint.metrics, is_shared=endpoint.priority, has_priority=endpoint.priority)
    if environment.conventions.containers:
        names = {"deployment": endpoint.deployment, "namespace": environment.namespace}
        url = environment.conventions.url.format(**names, port=ROUTER_PORT)
        engines_url = environment.conventions.engines_url.format(**names, port=ENGINE_PORT)
        metrics_urls = (f"{engines_url}{METRICS_PATH}",) if engines_url else ()
        return _Answering(url, metrics_urls, is_shared=True, has_priority=False)
    if not environment.data_folder:  # a check contacts nothing
        url = environment.conventions.url.format(deployment=endpoint.deployment, namespace="", port=0)
        return _Answering(url, (), is_shared=True, has_priority=False)
    deployment = _read_deployment(blueprint, Path(environment.data_folder).parent)
    return _Answering(
        deployment.url,
        tuple(deployment.metrics_urls.values()),
        is_shared=True,
        has_priority=deployment.tuning.priority,
        limits=tuple(_list_limits(deployment)),
    )


def _read_deployment(blueprint: Document[Blueprint], data: Path) -> ServingDeployment:
    """Read the serving deployment on this machine that the endpoint names.

    Raises:
        InputError: it does not run.
    """
    name = blueprint.value.endpoint.deployment
    try:
        return ServingDeployment.model_validate_json((data / str(name) / "deployment.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        reason = "no serving deployment of this name is up here"
        fix = f"blueprint deploy {name} first, from this directory"
        raise InputError([blueprint.build_mistake(("endpoint", "deployment"), name, reason, fix)]) from None


def _list_limits(deployment: ServingDeployment) -> Iterator[_Limit]:
    """List the percentile limits on latencies in the engines' metrics.

    With disaggregation no engine sees the whole time to a first token. End-to-end latency is left out: it depends on
    the length of a row's answer, which does not slow down people's answers.
    """
    metrics = engines.load_engines()[deployment.engine].metrics
    sees_all = deployment.answering_roles == deployment.engine_roles
    latencies: dict[EngineMetric, Percentiles] = {"itl": deployment.slo.itl_ms}
    if sees_all:
        latencies = {"ttft": deployment.slo.ttft_ms, **latencies}
    for latency, limits in latencies.items():
        for name, ms in limits:
            if latency in metrics and ms is not None and name != "mean":
                yield _Limit(f"{latency} {name}", metrics[latency], ms, allowed=1 - int(name.removeprefix("p")) / 100)


def _resolve_serving(
    blueprint: Document[Blueprint], fleet: Document[Fleet], environment: Environment, name: str
) -> ServingDeployment | None:
    """Resolve the batch's own replicas, as the kind `serving` does; None if it has none.

    Raises:
        InputError: they cannot work; at the lines of this blueprint.
    """
    try:
        settings = _build_serving_settings(blueprint.value.endpoint, name)
        if settings is None:
            return None
        document = _ReplicasDocument(blueprint.path, settings, blueprint.positions)
        return serving.resolve(document, fleet, environment)
    except ValidationError as error:
        reason = error.errors(include_url=False)[0]["msg"]
        raise InputError([blueprint.build_mistake(("endpoint",), None, reason, "other settings")]) from None


class _ReplicasDocument(Document[serving_blueprints.Blueprint]):
    """A batch's file, read as the settings of its own replicas: what they are asked for stands in `endpoint`."""

    def build_mistake(self, key_path: Sequence[str | int], value: Any, reason: str, fix: str) -> Mistake:
        key = key_path[-1:] if key_path[-1] in Endpoint.model_fields else ()
        return super().build_mistake(("endpoint", *key), value, reason, fix)


def _build_serving_settings(endpoint: Endpoint, name: str) -> serving_blueprints.Blueprint | None:
    """Build the blueprint of the batch's own replicas; None if it has none."""
    if not endpoint.model:
        return None
    role = EngineRole(
        pool=str(endpoint.pool),
        replicas=Bounds(endpoint.replicas, endpoint.replicas),
        accelerators=endpoint.accelerators,
    )
    return serving_blueprints.Blueprint(
        name=name,
        pattern="aggregated",
        model=endpoint.model,
        context=endpoint.context,
        roles=Roles(worker=role),
        traffic=Traffic(users=64, input_tokens=Bounds(1, endpoint.context // 2), output_tokens=Bounds(1, 1)),
        slo=Slo(),
    )
