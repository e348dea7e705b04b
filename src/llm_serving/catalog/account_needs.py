"""What each kind of work needs of a fleet's AWS account: `account.yaml` in the kind's folder, data with its source.

Nobody knows which kinds a fleet will carry, so networks have the endpoints of all, and preflight only warns about the
permissions and quotas of one.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from llm_serving.catalog.instances import Row
from llm_serving.catalog.quotas import Quota
from llm_serving.settings import own_yaml

FILE = "account.yaml"

KINDS = Path(__file__).parents[1] / "kinds"

Orchestrator = Literal["eks", "ecs"]

ORCHESTRATORS: tuple[Orchestrator, ...] = ("eks", "ecs")


class NeededEndpoint(Row):
    """An interface endpoint that programs of a kind call."""

    reason: str
    orchestrators: tuple[Orchestrator, ...] = ORCHESTRATORS
    """Those on which the programs call it."""

    closed_only: bool = False
    """Whether only networks without NAT gateways have it."""


class NeededQuota(Row):
    """The use that one deployment of a kind makes of a quota."""

    orchestrator: Orchestrator
    quota: Quota
    amount: int
    breakdown: str


class AccountNeeds(Row):
    """What one kind needs of an account."""

    read_on: str
    permissions: Mapping[Orchestrator, tuple[str, ...]] = {}
    """IAM actions that applying its stack takes, by the orchestrator that runs it."""

    endpoints: Mapping[str, NeededEndpoint] = {}
    """By the service's name behind `com.amazonaws.REGION.`."""

    quotas: tuple[NeededQuota, ...] = ()
    standing: Mapping[str, int] = {}
    """Units that every fleet pays for before anything of the kind is deployed, by their name in `services.yaml`."""

    images: tuple[str, ...] = ()
    """Folders of images/ that it runs, which have repositories in the fleet's registry."""


@functools.cache
def load_all() -> Mapping[str, AccountNeeds]:
    """Return the needs of every kind that has some, by the kind's name."""
    files = sorted(KINDS.glob(f"*/{FILE}"))
    return {file.parent.name.replace("_", "-"): _load(file) for file in files}


def list_images() -> list[str]:
    """Return the images of all kinds, each once."""
    images: dict[str, None] = {}
    for needs in load_all().values():
        images |= dict.fromkeys(needs.images)
    return list(images)


def _load(file: Path) -> AccountNeeds:
    data = own_yaml.read(file)
    permissions = {name: tuple(_flatten(rows)) for name, rows in data.get("permissions", {}).items()}
    return AccountNeeds.model_validate({**data, "permissions": permissions})


def _flatten(rows: list[Any]) -> list[str]:
    """Return the actions of a list, whose items may be lists that another one shares."""
    actions: list[str] = []
    for row in rows:
        actions += row if isinstance(row, list) else [row]
    return actions
