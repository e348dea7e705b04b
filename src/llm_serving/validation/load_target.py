"""What a load is sent to, whatever its kind: a kind builds it from its deployment."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from llm_serving.catalog import command_parts, frameworks
from llm_serving.services.traffic import Slo
from llm_serving.validation.load.load_plan import PlannedLoad, TargetRole
from llm_serving.validation.reports.report import WeightLoading


class LoadTarget(PlannedLoad):
    """An OpenAI-compatible URL, the traffic and the SLO of it, and what its report says besides."""

    name: str
    """The deployment's."""

    target: str
    slo: Slo
    engine: str = ""
    """The catalog's engine whose metrics the replicas have; empty without such metrics."""

    framework: str = command_parts.get_default(frameworks.load_frameworks())
    """The catalog's framework that runs it, which may give its metrics other names."""

    roles: tuple[TargetRole, ...] = ()
    router: str = ""
    """Role of the router."""

    router_requests: str = ""
    """Pattern of the name of its metric that counts requests; empty without one."""

    metrics_urls: dict[str, str] = Field(default_factory=dict)
    """Pages with the metrics by replica, where they can be read from here."""

    kv_block: int = 0
    """Tokens in a block of the engines' caches."""

    price: tuple[float, str] | None = None
    """USD an hour, and how that is reckoned; None where it is unknown."""

    capacity_key: str = ""
    """Digest of what decides the load that it carries, replicas left out."""

    images: dict[str, str] = Field(default_factory=dict)
    """By role."""

    settings: dict[str, Any] = Field(default_factory=dict)
    """The report's, besides URL, traffic and SLO."""

    weights: WeightLoading | None = None
    versions: dict[str, str] = Field(default_factory=dict)
    emulated: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    """Caveats of the deployment itself."""

    @property
    def hands_over(self) -> bool:
        """Whether a request passes through replicas that do not answer it, as with prefill and decode apart."""
        return not all(role.answers for role in self.roles)
