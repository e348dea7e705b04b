"""A pattern is a folder under blueprints/, defined by its blueprint.yaml and pattern.yaml."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_serving import paths
from llm_serving.kinds.serving import patterns
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.services import inputs
from llm_serving.settings import schema
from llm_serving.settings.errors import InputError
from tests.kinds.serving import resolving

FLEET = """\
name: demo
region: us-west-2
zones: [us-west-2a]
add_ons: {observability: on, schedulers: on, operators: on}
pools:
  general: {types: g6e.12xlarge, size: 0..8, efa: on}
"""
TWO_NODES = """\
pattern: {pattern}
name: mine
model: Qwen/Qwen3-32B
roles: {{worker: {{pool: general, accelerators: 8, pipeline: 2}}}}
traffic: {{users: 2}}
slo: {{}}
"""


@pytest.fixture
def pattern_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of blueprints/ with a pattern `wide` whose blueprint.yaml is aggregated's."""
    folder = tmp_path / "blueprints"
    shutil.copytree(paths.PATTERNS, folder)
    shutil.copytree(folder / "aggregated", folder / "wide")
    file = folder / "wide/blueprint.yaml"
    file.write_text(file.read_text().replace("pattern: aggregated", "pattern: wide"))
    monkeypatch.setattr(paths, "PATTERNS", folder)
    patterns.load_patterns.cache_clear()
    yield folder / "wide"
    patterns.load_patterns.cache_clear()


def test_a_folder_adds_a_pattern_with_the_roles_of_its_blueprint(pattern_folder: Path) -> None:
    assert patterns.load_patterns()["wide"].roles == ("worker",)
    assert inputs.read_blueprint(pattern_folder).value.pattern == "wide"
    assert '"wide"' in schema.render(Blueprint, "blueprint.yaml")


def test_only_a_pattern_with_spans_nodes_spans_nodes(tmp_path: Path, pattern_folder: Path) -> None:
    with pytest.raises(InputError, match="a replica runs on one node"):
        resolving.resolve_files(tmp_path, TWO_NODES.format(pattern="wide"), FLEET, "eks")
    (pattern_folder / patterns.FACTS_FILE).write_text("spans_nodes: on\n")
    patterns.load_patterns.cache_clear()
    deployment = resolving.resolve_files(tmp_path, TWO_NODES.format(pattern="wide"), FLEET, "eks")
    assert deployment.roles[0].nodes == 2


def test_an_unknown_fact_is_refused_at_its_line(pattern_folder: Path) -> None:
    (pattern_folder / patterns.FACTS_FILE).write_text("spans_node: on\n")
    patterns.load_patterns.cache_clear()
    with pytest.raises(InputError, match=r"pattern\.yaml:1:1: spans_node: unknown key\. Fix: write spans_nodes:"):
        patterns.load_patterns()
