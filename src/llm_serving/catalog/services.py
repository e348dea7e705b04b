"""Prices of the services that fleets and their deployments have: data with its source, in `services.yaml`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from llm_serving.catalog.instances import Source, parse_source
from llm_serving.settings import own_yaml
from llm_serving.settings.plain import PlainData

FILE = Path(__file__).with_name("services.yaml")


class Service(PlainData):
    """What one unit of a service costs."""

    usd_h: float
    regions: Literal["all"] | tuple[str, ...]
    """Regions that the price was seen for."""

    source: Source

    def is_known_in(self, region: str) -> bool:
        """Return whether the price is the region's own."""
        return self.regions == "all" or region in self.regions


@functools.cache
def load() -> Mapping[str, Service]:
    rows = own_yaml.read(FILE)
    return {
        name: Service(usd_h=row["usd_h"], regions=row["regions"], source=parse_source(row))
        for name, row in rows.items()
    }
