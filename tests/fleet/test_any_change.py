"""Whatever is changed in a settings file: it is understood, or refused with a place that is in the file."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llm_serving.fleet.model import Fleet
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.settings import own_yaml
from llm_serving.settings.document import load
from llm_serving.settings.errors import InputError

ROOT = Path(__file__).parents[2]
FILES = [
    *((Fleet, own_yaml.read(path)) for path in (ROOT / "fleet.yaml", *ROOT.glob("infra/fleets/*.yaml"))),
    *((Blueprint, own_yaml.read(path)) for path in ROOT.glob("blueprints/*/blueprint.yaml")),
]


def find_paths(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value in plain data but the whole."""
    for step, value in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield (*path, step)
        yield from find_paths(value, (*path, step))


plain = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=8),
        st.sampled_from(["us-east-1a", "spot", "9..1", "1 USD/h", "x" * 300, "${x}", "p95"]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
    max_leaves=5,
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "file.yaml"


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_change_is_accepted_or_refused_at_a_position_in_the_file(data: st.DataObject, file: Path) -> None:
    kind, original = data.draw(st.sampled_from(FILES))
    mutated = copy.deepcopy(original)
    for _ in range(data.draw(st.integers(1, 4))):
        path = data.draw(st.sampled_from(sorted(find_paths(mutated), key=str)))
        parent = mutated
        for step in path[:-1]:
            parent = parent[step]
        action = data.draw(st.sampled_from(["replace", "delete", "add", "rename"]))
        if action == "delete":
            del parent[path[-1]]
        elif action == "replace" or isinstance(parent, list):
            parent[path[-1]] = data.draw(plain)
        else:
            value = parent.pop(path[-1]) if action == "rename" else data.draw(plain)
            parent[data.draw(st.one_of(st.text(max_size=6), st.just(f"{path[-1]}s")))] = value
        if not isinstance(mutated, dict) or not mutated:
            return
    text = yaml.dump(mutated, Dumper=yaml.CSafeDumper, allow_unicode=data.draw(st.booleans()), default_flow_style=False)
    file.write_text(text, encoding="utf-8", errors="replace", newline="")
    try:
        load(file, kind)
    except InputError as error:
        assert error.mistakes
        lines = text.splitlines()
        for mistake in error.mistakes:
            assert 1 <= mistake.line <= max(len(lines), 1)
            assert mistake.column >= 1
            assert mistake.reason
            assert mistake.fix
            assert str(mistake).isprintable()
            assert "[key]" not in mistake.field
