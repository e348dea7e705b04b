"""A whole preflight: all questions of a fleet, and the answers as plain data."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llm_serving import console
from llm_serving.aws.preflight import identity, price, quotas, reservations, runner, state, subnets, zones
from llm_serving.aws.preflight.check import Group, Line, Question, unknown
from llm_serving.aws.preflight.identity import Identity
from llm_serving.aws.session import Aws
from llm_serving.catalog.instances import Catalogue
from llm_serving.fleet import capacity, checks
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import Document
from llm_serving.settings.errors import Mistake


@dataclass(frozen=True)
class Report:
    """What a preflight found."""

    fleet: Fleet
    who: Identity
    at: str
    """Who answered: AWS, or another server."""

    groups: tuple[Group, ...]

    @property
    def lines(self) -> tuple[Line, ...]:
        """All lines, without their headings."""
        return tuple(line for group in self.groups for line in group.lines)

    @property
    def counts(self) -> dict[str, int]:
        """Lines by status."""
        found = Counter(line.status for line in self.lines)
        return {status: found[status] for status in ("pass", "warn", "fail")}

    def plain(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            "fleet": self.fleet.name,
            "region": self.fleet.region,
            "account": self.who.account,
            "identity": self.who.arn,
            "answered_by": self.at,
            "ok": not self.counts["fail"],
            "counts": {**self.counts, "unknown": sum(not line.known for line in self.lines)},
            "groups": [
                {"title": group.title, "lines": [line.plain() for line in group.lines]} for group in self.groups
            ],
        }


def run(document: Document[Fleet], catalogue: Catalogue, aws: Aws, *, limit_s: float = runner.LIMIT_S) -> Report:
    """Asks all there is to ask; changes nothing.

    Raises:
        Unavailable: no credentials, or no network.
    """
    fleet = document.value
    with console.step(f"Ask {aws.at()} who asks"):
        who = identity.whoami(aws)
    mistakes = checks.check(document, catalogue)
    put = _questions(document, catalogue, aws, who, mistakes)
    with console.step(f"Ask {aws.at()} about {fleet.name} in {fleet.region}") as step:
        groups = runner.ask(put, step, limit_s)
    return Report(fleet, who, aws.at(), tuple(group for group in groups if group.lines))


def _questions(
    document: Document[Fleet], catalogue: Catalogue, aws: Aws, who: Identity, mistakes: Sequence[Mistake]
) -> list[Question]:
    fleet = document.value
    limit = [one for one in mistakes if one.field == "spend_limit"]
    others = [one for one in mistakes if one.field not in _SAID_BELOW]
    return [
        *identity.questions(aws, fleet, who),
        Question("fleet file", "fleet file", lambda: [_mistake(one) for one in others]),
        *zones.questions(aws, fleet),
        *_sizes(document, catalogue, aws),
        *reservations.questions(aws, fleet, catalogue),
        *state.questions(aws, fleet, who, str(document.path)),
        Question("price", "price", lambda: price.lines(fleet, catalogue, limit, datetime.date.today())),
    ]


_SAID_BELOW = ("spend_limit", "network.cidr", "pools")
"""Fields whose mistakes have a line of their own: with the price, the subnets and the limits."""


def _sizes(document: Document[Fleet], catalogue: Catalogue, aws: Aws) -> list[Question]:
    """What follows from the number of machines; nothing, where a type is unknown and none can be counted."""
    fleet = document.value
    if any(kind not in catalogue for pool in fleet.pools.values() for kind in pool.types):
        missing = unknown(
            "quotas", "the catalogue lacks a type, so nothing was counted", "write a type that it has, as said above"
        )
        return [Question("quotas", "quotas", lambda: [missing])]
    met = capacity.of(fleet, catalogue)
    return [*quotas.questions(aws, fleet, met), *subnets.questions(aws, fleet, catalogue, met)]


def _mistake(one: Mistake) -> Line:
    return Line(f"line {one.line}", "fail", f"{one.field}: now {one.value}: {one.why}", f"write {one.write}")
