"""Workload kinds: discovered by their packages, selected at the top of blueprint.yaml."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_serving.kinds.serving.kind import KIND
from llm_serving.services import inputs, kinds
from llm_serving.services.blueprint import DEFAULT_KIND
from llm_serving.settings.errors import InputError

BLUEPRINT = """\
pattern: aggregated
model: tiny
roles: {worker: {pool: general}}
traffic: {users: 8}
slo: {}
"""


def test_serving_is_the_default_workload_kind() -> None:
    assert kinds.list_kinds()[0] == DEFAULT_KIND == "serving"
    assert kinds.get("serving") is KIND


def test_the_kind_is_optional(tmp_path: Path) -> None:
    file = tmp_path / "blueprint.yaml"
    file.write_text(BLUEPRINT)
    without_kind = inputs.read_blueprint(tmp_path)
    file.write_text(f"kind: serving\n{BLUEPRINT}")
    with_kind = inputs.read_blueprint(tmp_path)
    assert without_kind.value == with_kind.value
    assert kinds.get_for(with_kind) is KIND


def test_an_unknown_kind_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    file = tmp_path / "blueprint.yaml"
    file.write_text(f"kind: sailing\n{BLUEPRINT}")
    with pytest.raises(InputError) as error:
        inputs.read_blueprint(tmp_path)
    choices = " or ".join(kinds.list_kinds())
    assert str(error.value) == f'{file}:1:7: kind: "sailing": there is no such kind. Fix: kind: {choices}.'
