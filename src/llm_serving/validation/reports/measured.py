"""What the report of one validation is built from."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llm_serving.validation.base import LoadSource
from llm_serving.validation.drivers.base import Driver
from llm_serving.validation.load.answer import Sample
from llm_serving.validation.load.driver_result import DriverResult
from llm_serving.validation.load_target import LoadTarget


@dataclass(frozen=True)
class Measured:
    """What one validation measured, and of what."""

    target: LoadTarget
    result: DriverResult
    samples: Sequence[Sample]
    prompts_digest: str = ""
    notes: Sequence[str] = ()
    """Remarks on the traffic."""

    driver: Driver | None = None
    """Drop-in that sent the load; None for our own."""

    source: LoadSource | None = None
    """From where the load came; None for this machine."""

    unscored: str = ""
    """Why answers with an expected one have no score."""

    @functools.cached_property
    def answered(self) -> Sequence[Sample]:
        return [sample for sample in self.samples if sample.error is None]

    @functools.cached_property
    def unmeasured(self) -> Mapping[str, str]:
        """Objectives that this load does not measure, each with the reason."""
        return {
            **(self.driver.unmeasured if self.driver else {}),
            **({"score": self.unscored} if self.unscored else {}),
        }
