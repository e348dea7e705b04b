"""The validation seam: the module that each kind of workload names is one that `blueprint validate` can call."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from llm_serving.services import kinds
from llm_serving.validation.base import Validator, load_validator


def list_parameters(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


@pytest.mark.parametrize("kind", [kind for kind in kinds.list_kinds() if kinds.get(kind).VALIDATOR])
@pytest.mark.parametrize("name", ["validate", "render", "require_slo"])
def test_a_validator_takes_what_every_kind_is_given(kind: str, name: str) -> None:
    """A kind names its validator in a string, which mypy does not compare with the protocol."""
    assert list_parameters(getattr(load_validator(kind), name)) == list_parameters(getattr(Validator, name))
