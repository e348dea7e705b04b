"""What a fleet needs of its AWS account (`account.yaml` here), and what each kind of work adds (that of its folder).

Nobody knows which kinds a fleet will carry, so networks have the endpoints of all, and preflight only warns about the
permissions and quotas of one.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from llm_serving.catalog.eks import CsiDriver
from llm_serving.catalog.quotas import Quota
from llm_serving.settings import own_yaml
from llm_serving.settings.plain import PlainData

FILE = "account.yaml"

KINDS = Path(__file__).parents[1] / "kinds"

Orchestrator = Literal["eks", "ecs"]

ORCHESTRATORS: tuple[Orchestrator, ...] = ("eks", "ecs")


class Endpoint(PlainData):
    """An interface endpoint of a service that nodes or programs call."""

    service: str
    """Its name behind `com.amazonaws.REGION.`."""

    reason: str
    orchestrators: tuple[Orchestrator, ...] = ORCHESTRATORS
    """Those on which it is called."""

    closed_only: bool = False
    """Whether only networks without NAT gateways have it; elsewhere the few calls go by the internet."""

    csi_driver: CsiDriver | None = None
    """The driver of volumes that calls it; None where no driver does."""


class ServiceRole(PlainData):
    """A role by which an AWS service acts in the account."""

    name: str
    service: str
    needed_by: Literal["pools", "spot", "eks", "ecs"] = "pools"
    consequence: str
    """What goes wrong without it."""


class NeededQuota(PlainData):
    """The use that one deployment of a kind makes of a quota."""

    orchestrator: Orchestrator
    quota: Quota
    amount: int
    breakdown: str


class _Needs(PlainData):
    read_on: str
    endpoints: tuple[Endpoint, ...] = ()


class FleetNeeds(_Needs):
    """What every fleet needs of an account."""

    permissions: Mapping[str, tuple[str, ...]]
    """IAM actions that applying it takes, by part of it."""

    service_roles: tuple[ServiceRole, ...]


class AccountNeeds(_Needs):
    """What one kind needs of an account."""

    permissions: Mapping[Orchestrator, tuple[str, ...]] = {}
    """IAM actions that applying its stack takes, by the orchestrator that runs it."""

    quotas: tuple[NeededQuota, ...] = ()
    standing: Mapping[str, int] = {}
    """Units that every fleet pays for before anything of the kind is deployed, by their name in `services.yaml`."""

    images: tuple[str, ...] = ()
    """Folders of images/ that it runs, which have repositories in the fleet's registry."""


@functools.cache
def load_fleet() -> FleetNeeds:
    return FleetNeeds.model_validate(_read_needs(Path(__file__).with_name(FILE)))


@functools.cache
def load_all() -> Mapping[str, AccountNeeds]:
    """Return the needs of every kind that has some, by the kind's name."""
    files = sorted(KINDS.glob(f"*/{FILE}"))
    return {file.parent.name.replace("_", "-"): AccountNeeds.model_validate(_read_needs(file)) for file in files}


def list_images() -> list[str]:
    """Return the images of all kinds, each once."""
    images: dict[str, None] = {}
    for needs in load_all().values():
        images |= dict.fromkeys(needs.images)
    return list(images)


def _read_needs(file: Path) -> dict[str, Any]:
    document = own_yaml.read(file)
    permissions = {name: tuple(own_yaml.flatten(rows)) for name, rows in document.get("permissions", {}).items()}
    endpoints = tuple({"service": service, **row} for service, row in document.get("endpoints", {}).items())
    return {**document, "permissions": permissions, "endpoints": endpoints}
