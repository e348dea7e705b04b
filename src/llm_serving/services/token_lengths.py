"""Lengths of prompts and answers in `traffic`: a range, or a distribution within bounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from llm_serving.settings.document import Conflict, Settings
from llm_serving.settings.units import TokenRange, Tokens

DEFAULT_CV = 0.5


class TokenDistribution(Settings):
    """Lengths around a mean."""

    mean: Tokens
    """Mean of the distribution, before lengths outside `within` are drawn again."""

    cv: Annotated[float, Field(gt=0, le=10)] = DEFAULT_CV
    """Coefficient of variation: standard deviation by mean."""

    shape: Literal["normal", "lognormal", "gamma"] = "lognormal"
    """Lognormal and gamma have a long tail, as prompts of people have."""

    within: TokenRange
    """Bounds, both included; a length outside is drawn again."""

    @property
    def min(self) -> int:
        return self.within.min

    @property
    def max(self) -> int:
        return self.within.max

    def _check_mean(self) -> Iterator[Conflict]:
        if not self.within.min <= self.mean <= self.within.max:
            yield Conflict(("mean",), f"it is outside {self.within}", "write a mean within the bounds, or wider bounds")

    def __str__(self) -> str:
        return f"{self.within} ({self.shape}, mean {self.mean}, cv {self.cv:g})"


TokenLengths = Annotated[
    Annotated[TokenRange, Tag("<range>")] | Annotated[TokenDistribution, Tag("<distribution>")],
    Discriminator(lambda value: "<distribution>" if isinstance(value, dict | TokenDistribution) else "<range>"),
]
"""`200`, `2k..4k`, or `{mean: 1k, cv: 0.8, shape: lognormal, within: 16..4k}`; both have `min` and `max`."""
