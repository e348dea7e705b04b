"""Workload kinds: discovered by their packages, selected at the top of blueprint.yaml."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_serving.settings.errors import InputError
from llm_serving.workloads import base, inputs
from llm_serving.workloads.serving.workload import WORKLOAD

BLUEPRINT = """\
pattern: aggregated
model: tiny
roles: {worker: {pool: general}}
traffic: {users: 8}
slo: {}
"""


def test_serving_is_the_default_workload_kind() -> None:
    assert base.list_kinds()[0] == base.DEFAULT_KIND == "serving"
    assert base.get("serving") is WORKLOAD


def test_the_kind_is_optional(tmp_path: Path) -> None:
    file = tmp_path / "blueprint.yaml"
    file.write_text(BLUEPRINT)
    without_kind = inputs.read_blueprint(tmp_path)
    file.write_text(f"kind: serving\n{BLUEPRINT}")
    with_kind = inputs.read_blueprint(tmp_path)
    assert without_kind.value == with_kind.value
    assert base.get_for(with_kind) is WORKLOAD


def test_an_unknown_kind_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    file = tmp_path / "blueprint.yaml"
    file.write_text(f"kind: sailing\n{BLUEPRINT}")
    with pytest.raises(InputError) as error:
        inputs.read_blueprint(tmp_path)
    kinds = " or ".join(base.list_kinds())
    assert str(error.value) == f"{file}:1:7: kind: now 'sailing': there is no such kind. Fix: kind: {kinds}."
