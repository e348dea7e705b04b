"""What the fleet costs an hour, from the catalogue's dated prices; nothing is asked of AWS."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from llm_serving.aws.preflight.check import Line
from llm_serving.catalog.instances import Catalogue
from llm_serving.fleet import cost
from llm_serving.fleet.checks import listed
from llm_serving.fleet.model import Fleet
from llm_serving.settings.errors import Mistake

STALE_DAYS = 90
"""Older prices are doubted: AWS has changed those of accelerators about once a year, by up to 45% (P5, June 2025)."""


def lines(fleet: Fleet, catalogue: Catalogue, mistakes: Sequence[Mistake], today: datetime.date) -> list[Line]:
    """The span of the cost, and whether the spend limit holds it."""
    costs = cost.of(fleet, catalogue)
    # Who collected a list is in the catalogue; here its date is what counts.
    dates = ", ".join(dict.fromkeys(f"{source.name.split(',')[0]}, {source.date}" for source in costs.sources))
    sign = "at least " if costs.unknown else ""
    said = f"{costs.least_usd_h:,.2f} to {sign}{costs.most_usd_h:,.2f} USD/h on demand{f' ({dates})' if dates else ''}"
    refresh = ("blueprint", "catalog", "refresh", "--region", fleet.region)
    found = [Line("spend limit", "fail", one.why, f"write {one.write}") for one in mistakes]
    if costs.unknown:
        return [Line("price", "warn", f"{said}; unknown for {listed(costs.unknown)}", "ask AWS", refresh), *found]
    if any(_stale(source.date, today) for source in costs.sources):
        return [Line("price", "warn", f"{said}: older than {STALE_DAYS} days", "read it anew", refresh), *found]
    if not found and fleet.spend_limit is not None:
        said += f", within the limit of {fleet.spend_limit:,.10g}"
    prepaid = [name for name, pool in fleet.pools.items() if cost.prepaid(pool)]
    if prepaid:
        said += f"; {listed(prepaid)} {'is' if len(prepaid) == 1 else 'are'} paid already"
    return [Line("price", "pass", said), *found]


def _stale(date: str, today: datetime.date) -> bool:
    """Whether a day, or a month where no day is known, lies too far back."""
    day = datetime.date.fromisoformat(date if date.count("-") == 2 else f"{date}-01")
    return (today - day).days > STALE_DAYS
