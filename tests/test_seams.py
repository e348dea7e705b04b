"""No module compares with the name of a target, an engine, a router, a framework, a pattern or a kind but its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_serving.catalog import engines
from llm_serving.kinds.serving import patterns
from llm_serving.services import kinds
from llm_serving.targets import registry

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "llm_serving"

TARGETS = frozenset(registry.list_targets())
OTHERS = frozenset(
    {
        *engines.load_engines(),
        *engines.load_routers(),
        *engines.load_frameworks(),
        *patterns.load_patterns(),
        *kinds.list_kinds(),
    }
)
SAME_WORDS = ("orchestrator", "state", "images", "kind ")
"""Other things with the same values: a fleet's orchestrator and Terraform state, an image mode, a kind of tensor."""

ORCHESTRATOR_PACKAGES = ("aws", "fleet", "operations", "rehearsal", "terraform", "hub", "settings", "catalog")
"""Packages below the targets: `eks` and `ecs` are a fleet's orchestrators and AWS's services there."""

OWN = {"targets": TARGETS, "kinds": frozenset(kinds.list_kinds())}
"""A package of these directories may name itself."""


def find_comparisons(source: str, names: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Lines of `source` that compare with one of `names`, or choose by it: ==, !=, in, match, a key of a mapping read by it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            operands = [node.value]
        else:
            continue
        if any(word in ast.unparse(node) for word in SAME_WORDS):
            continue
        for operand in operands:
            for name in _list_strings(operand):
                if name in names:
                    yield node.lineno, name


def _list_strings(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.Tuple | ast.List | ast.Set):
        for element in node.elts:
            yield from _list_strings(element)


def list_violations(root: Path) -> list[str]:
    """Each comparison in the package at `root` that another than the named one's own module makes."""
    violations = []
    for file in sorted(root.rglob("*.py")):
        parts = file.relative_to(root).parts
        names = OTHERS if parts[0] in ORCHESTRATOR_PACKAGES else OTHERS | TARGETS
        if parts[0] in OWN and len(parts) > 2:
            names -= OWN[parts[0]] & {parts[1].replace("_", "-")}
        violations += [
            f"{file.relative_to(root)}:{line}: {name}" for line, name in find_comparisons(file.read_text(), names)
        ]
    return violations


def test_no_module_compares_with_a_name_of_another_seam() -> None:
    assert list_violations(SOURCE) == []


@pytest.mark.parametrize(
    "line",
    ["x == 'local'", "'ecs' != x", "x in ('eks', 'ecs')", "x == 'vllm'", "x == 'aggregated'", "x != 'vllm-router'"],
)
def test_a_comparison_with_such_a_name_is_reported(tmp_path: Path, line: str) -> None:
    (tmp_path / "cli").mkdir()
    (tmp_path / "cli" / "main.py").write_text(f"def check(x):\n    return {line}\n")
    assert list_violations(tmp_path)


def test_a_package_may_compare_with_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "targets" / "eks").mkdir(parents=True)
    (tmp_path / "targets" / "eks" / "target.py").write_text("def check(x):\n    return x == 'eks'\n")
    assert list_violations(tmp_path) == []
