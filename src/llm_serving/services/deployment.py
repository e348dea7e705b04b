"""A blueprint of any kind, resolved against a fleet: frozen data, every number decided."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from llm_serving.catalog.engines import EngineMetric
from llm_serving.catalog.frameworks import Workload
from llm_serving.services.environment import Environment
from llm_serving.services.models import LoadedModel, ServedModel
from llm_serving.services.service import Service
from llm_serving.services.traffic import Slo
from llm_serving.settings.choices import Task
from llm_serving.settings.plain import PlainData


class Door(PlainData):
    """What asks clients of an endpoint for keys of teams."""

    keys: str
    """Document of the keys: a file, or secret:NAME."""

    usage_address: str
    """HOST:PORT of the page of metrics with what teams used; on AWS the name has an address for each router."""


class Deployment(PlainData):
    """What runs of a blueprint, whatever its kind."""

    kind: str
    name: str
    target: str
    fleet: str
    environment: Environment
    notes: tuple[str, ...] = ()
    """What the user should know of this target, a sentence each."""

    emulated: tuple[str, ...] = ()
    """Parts that are emulated; shown with every result."""

    engine: str = ""
    """The engine that its services run; empty where they run none by themselves."""

    framework: str = ""
    """What keeps its replicas running; empty for a kind without frameworks."""

    services: tuple[Service, ...] = ()
    """What the target runs, in the order of starting."""

    stack: Any = None
    """Data of the Terraform stack KIND-NAME that the deployment has beside its services; None without a stack."""

    workload: Workload | None = None
    """The custom kind by which a framework runs the services on EKS; None for Kubernetes' own kinds."""

    chart: str = ""
    """Folder of charts/ that the deployment is a release of, where the target installs charts."""

    url: str = ""
    """Base URL for clients; empty where there is no endpoint."""

    door: Door | None = None
    """What asks clients for keys of teams; None where everybody may call."""

    @property
    def workers(self) -> tuple[Service, ...]:
        return tuple(service for service in self.services if not service.is_entry)

    @property
    def entries(self) -> tuple[Service, ...]:
        """The services before the workers, which start after them; none where there is no endpoint."""
        return tuple(service for service in self.services if service.is_entry)

    @property
    def all_services(self) -> tuple[Service, ...]:
        """All that runs, in the order of starting: emulated AWS, the workers, what is before them."""
        return (*self.environment.services, *self.services)

    @property
    def served_models(self) -> tuple[ServedModel, ...]:
        """The models that clients can name; none where there is no inference API."""
        return ()

    @property
    def loaded_models(self) -> tuple[LoadedModel, ...]:
        """The models whose weights the bucket must hold before the workers start."""
        return ()


class Traits(PlainData):
    """What a deployment goes by where requests wait, as a gateway's request_guard.py reads it."""

    has_priority: bool = False
    """Whether it schedules by `priority` of a request."""

    classes: dict[str, dict[str, str]] = Field(default_factory=dict)
    """Headers of a request by its class, `high` or `low`; empty where it has no classes."""

    caller_header: str = ""
    """Header of a request with its caller, by which it takes turns; empty where it does not."""


class FoundDeployment(PlainData):
    """What others need of a deployment to call it. Facts that are not known are empty or None."""

    name: str
    kind: str = ""
    url: str
    """Base URL for clients."""

    models: tuple[str, ...] = ()
    """What clients can put in `model`."""

    task: Task | None = None
    """What its models are for."""

    usd_h: float | None = None
    """Cost per hour; None without prices, and where its replicas follow the load."""

    price: str = ""
    """How the cost is calculated."""

    slo: Slo | None = None
    metrics_urls: tuple[str, ...] = ()
    """Pages with its workers' metrics."""

    metrics: dict[EngineMetric, str] = Field(default_factory=dict)
    """Prometheus names of what a worker measures of a whole request, by signal."""

    traits: Traits = Traits()
    """What it goes by where requests wait."""

    door: Door | None = None
    """None where everybody may call it."""
