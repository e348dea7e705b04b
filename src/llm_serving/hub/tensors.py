"""Tensors of a generated model: their names, shapes, and how far their values spread."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

_BIAS_SPREAD = 0.02


class Tensor(NamedTuple):
    """One tensor of the checkpoint, under Hugging Face's name; with `spread` 0 it is all ones."""

    name: str
    shape: tuple[int, ...]
    spread: float
    """Standard deviation."""

    @property
    def bytes(self) -> int:
        """Size in bfloat16."""
        return 2 * math.prod(self.shape)


def list_layer(name: str, shape: tuple[int, ...], spread: float | None = None) -> Iterator[Tensor]:
    """Yield the weight and the bias of a linear or convolution layer.

    Args:
        spread: of the weight; by default its outputs spread as its inputs do.
    """
    yield Tensor(f"{name}.weight", shape, 1 / math.sqrt(math.prod(shape[1:])) if spread is None else spread)
    yield Tensor(f"{name}.bias", shape[:1], _BIAS_SPREAD)


def list_norm(name: str, width: int) -> Iterator[Tensor]:
    return list_layer(name, (width,), 0)
