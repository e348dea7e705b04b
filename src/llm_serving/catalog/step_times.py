"""How long a step of an engine takes on each accelerator: the fitted numbers, and the links of a node."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from llm_serving.catalog.instances import Accelerators
from llm_serving.settings import own_yaml
from llm_serving.settings.errors import InputError
from llm_serving.settings.plain import PlainData

FILE = Path(__file__).with_name("step_times.yaml")
"""Written by scripts/fit_step_times.py."""


LINKS_FILE = Path(__file__).with_name("links.yaml")


class Coefficients(PlainData):
    """The numbers that were fitted; efficiencies are shares of the hardware's peak."""

    memory_efficiency: float
    """Of the bandwidth, where weights are read."""

    expert_efficiency: float
    """Of that, where the weights are experts': many small matrices."""

    cache_efficiency: float
    """Of the bandwidth, where the KV cache is read."""

    bf16_efficiency: float
    fp8_efficiency: float
    fp4_efficiency: float
    attention_efficiency: float
    """Of 16-bit operations, in the attention of prompts."""

    link_efficiency: float
    """Of the rate of links between accelerators."""

    step_s: float
    """Of a step, whatever it holds."""

    layer_s: float
    expert_layer_s: float
    """On top of that, of each layer of a mixture of experts."""

    sequence_s: float
    """Of each request in a step."""

    reduce_s: float
    """Of each all-reduce, whatever it carries."""

    first_token_s: float
    """From the client to the engine and back, beside the steps."""


EFFICIENCIES = [name for name in Coefficients.model_fields if name.endswith("_efficiency")]
SECONDS = ["step_s", "layer_s", "expert_layer_s", "sequence_s", "reduce_s"]
_OF_WEIGHTS = ("memory_efficiency", "expert_efficiency")


class Link(PlainData):
    """What joins the accelerators of a node."""

    accelerators: tuple[str, ...]
    kind: str
    gb_s: float
    """One accelerator's to the others, one way, in 10^9 bytes a second."""

    source: str
    date: str


class Interval(PlainData):
    """What 80% of measured times were, as multiples of the predicted ones."""

    low: float
    high: float
    points: int
    """Measurements that it follows from."""


class FittedDevice(PlainData):
    """An accelerator with measurements among those of the fit."""

    scale: float
    """Its measured times, as multiples of those of the common coefficients."""

    points: int


class StepTimes(PlainData):
    """All of step_times.yaml and links.yaml."""

    source: str
    date: str
    engines: str
    """Versions of the engines that were measured."""

    coefficients: Coefficients
    devices: Mapping[str, FittedDevice]
    """By name of the catalog and memory in MiB, as `A100 40960`."""

    intervals: Mapping[str, Interval]
    """What four in five times are, as multiples of a prediction, by its basis: catalog, extrapolated, calibrated."""

    links: tuple[Link, ...]
    is_calibrated: bool = False
    """Whether the coefficients fit a user's own measurements."""

    def get_scale(self, device: Accelerators) -> float:
        """Return the scale of an accelerator, or 1 where none was measured."""
        fitted = self.devices.get(build_key(device))
        return fitted.scale if fitted else 1.0

    def get_basis(self, device: Accelerators) -> str:
        """Return `catalog` for an accelerator that was measured, else `extrapolated`."""
        if self.is_calibrated:
            return "calibrated"
        return "catalog" if build_key(device) in self.devices else "extrapolated"

    def scale(self, alone: float, batch: float, first_token_s: float) -> StepTimes:
        """Return calibrated step times.

        Args:
            alone: what the step of one request takes: weights that are read, layers, sums; as a multiple.
            batch: what each token and each request adds: operations, caches, transfers; as a multiple.
        """
        current = self.coefficients.model_dump()
        scaled = {name: current[name] / (alone if name in _OF_WEIGHTS else batch) for name in EFFICIENCIES}
        scaled |= {name: current[name] * (batch if name == "sequence_s" else alone) for name in SECONDS}
        coefficients = Coefficients(**scaled, first_token_s=first_token_s)
        return self.model_copy(update={"coefficients": coefficients, "is_calibrated": True})

    def get_link(self, device: Accelerators) -> Link:
        """Return the links of a node of such accelerators.

        Raises:
            InputError: none is known.
        """
        link = next((row for row in self.links if device.name in row.accelerators), None)
        if link is None:
            raise InputError(f"{device.name}: {LINKS_FILE.name} has no link of it. Fix: use another instance type.")
        return link


def build_key(device: Accelerators) -> str:
    """Return how an accelerator is named among the measured ones: EC2 has one name for both A100."""
    return f"{device.name} {device.memory_mib}"


@functools.cache
def load() -> StepTimes:
    rows = own_yaml.read(FILE)
    return StepTimes.model_validate({**rows, "links": load_links()})


@functools.cache
def load_links() -> tuple[Link, ...]:
    """Return what joins the accelerators of a node."""
    return tuple(map(Link.model_validate, own_yaml.read(LINKS_FILE)["links"]))
