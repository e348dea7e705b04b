"""No module chooses by the name of a target, an engine, a router, a framework, a pattern or a kind but its own.

To choose is to compare with a name, to look one up in a mapping that is written out, to ask for a kind's class, to look
for `kind: NAME` in a text, or to name one in a condition of a template.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_serving.catalog import engines, frameworks, routers
from llm_serving.kinds.serving import patterns
from llm_serving.services import kinds
from llm_serving.targets import registry

ROOT = Path(__file__).parents[1]

TARGETS = frozenset(registry.list_targets())
KINDS = frozenset(kinds.list_kinds())
OTHERS = frozenset(
    {
        *engines.load_engines(),
        *routers.load_routers(),
        *frameworks.load_frameworks(),
        *patterns.load_patterns(),
        *KINDS,
    }
)
SAME_WORDS = ("orchestrator", "state", "images")
"""Other things with the same values: a fleet's orchestrator and Terraform state, an image mode."""

ORCHESTRATOR_PACKAGES = ("aws", "fleet", "operations", "rehearsal", "terraform", "hub", "settings", "catalog", "infra")
"""Packages below the targets: `eks` and `ecs` are a fleet's orchestrators and AWS's services there."""

OWN_FOLDERS = {"targets": TARGETS, "kinds": KINDS, "stacks": KINDS}
"""A package, or a module, of these folders may name itself."""

_WRITTEN = re.compile(r"\b(?:kind|engine|framework|router|pattern|target): ([\w.-]+)")
_CONDITION = re.compile(r"\{%-?\s*(?:el)?if\b(.*?)%\}|\{\{-?\s*(?:else )?if\b(.*?)\}\}|\{\{(.*?\sif\s.*?)\}\}", re.S)
_QUOTED = re.compile(r"[\"']([\w.-]+)[\"']")


def find_choices(source: str, names: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Yield each line of Python that chooses by one of `names`, with the name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            if not any(word in ast.unparse(node) for word in SAME_WORDS):
                yield from _find_names(node, [node.left, *node.comparators], names)
        elif isinstance(node, ast.MatchValue):
            yield from _find_names(node, [node.value], names)
        elif isinstance(node, ast.Dict):
            found = list(_find_names(node, [key for key in node.keys if key is not None], names))
            yield from found if len(found) == len(node.keys) else ()  # other mappings merely have such a word
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            yield from _find_classes(node, names)


def _find_names(
    node: ast.expr | ast.pattern, operands: list[ast.expr], names: frozenset[str]
) -> Iterator[tuple[int, str]]:
    for operand in operands:
        for text in _list_strings(operand):
            if text in names:
                yield node.lineno, text
            yield from ((node.lineno, name) for name in _WRITTEN.findall(text) if name in names)


def _find_classes(call: ast.Call, names: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Yield classes that are called after a kind, such as BatchDeployment or EcsBatch."""
    for name in sorted(KINDS & names):
        if re.search(rf"\b\w*{name.capitalize()}[A-Z]?\w*\b", ast.unparse(call.args[1])):
            yield call.lineno, name


def _list_strings(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.Tuple | ast.List | ast.Set):
        for element in node.elts:
            yield from _list_strings(element)


def find_conditions(template: str, names: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Yield each condition of a Jinja or Helm template that has one of `names`."""
    for match in _CONDITION.finditer(template):
        text = next(group for group in match.groups() if group is not None)
        line = template.count("\n", 0, match.start()) + 1
        yield from ((line, name) for name in _QUOTED.findall(text) if name in names)


def list_violations(root: Path) -> list[str]:
    """List each choice in the repository at `root` that another than the named one's own module makes."""
    violations = []
    for folder in ("src/llm_serving", "infra"):
        for file in sorted((root / folder).rglob("*.py")):
            parts = file.relative_to(root / folder).parts
            package = parts[0] if folder != "infra" else folder
            names = OTHERS if package in ORCHESTRATOR_PACKAGES else OTHERS | TARGETS
            if parts[0] in OWN_FOLDERS and len(parts) > 1:
                names -= OWN_FOLDERS[parts[0]] & {parts[1].removesuffix(".py").replace("_", "-")}
            found = find_choices(file.read_text(), names)
            violations += [f"{file.relative_to(root)}:{line}: {name}" for line, name in found]
    templates = [*(root / "blueprints").rglob("*.j2"), *(root / "charts").glob("*/templates/**/*.*")]
    for file in sorted(templates):
        found = find_conditions(file.read_text(), (OTHERS | TARGETS) - {file.parent.name})  # a folder may name itself
        violations += [f"{file.relative_to(root)}:{line}: {name}" for line, name in found]
    return violations


def test_no_module_chooses_by_a_name_of_another_seam() -> None:
    assert list_violations(ROOT) == []


@pytest.mark.parametrize(
    "line",
    [
        "x == 'local'",
        "'ecs' != x",
        "x in ('eks', 'ecs')",
        "x == 'vllm'",
        "x == 'aggregated'",
        "x != 'vllm-router'",
        "deployment.kind == 'batch'",
        "role.kind == 'serving'",
        "{'serving': 1, 'batch': 2}[x]",
        "{'eks': 1, 'ecs': 2}[x]",
        "'kind: batch' in text",
        "'\\nkind: batch\\n' in text",
        "'engine: vllm' in text",
        "isinstance(x, BatchDeployment)",
        "isinstance(x, module.EcsBatch)",
        "isinstance(x, (int, ServingDeployment))",
    ],
)
@pytest.mark.parametrize("folder", ["src/llm_serving/cli", "src/llm_serving/targets/moon"])
def test_a_choice_by_such_a_name_is_reported(tmp_path: Path, folder: str, line: str) -> None:
    _write(tmp_path / folder / "main.py", f"def check(x):\n    return {line}\n")
    assert list_violations(tmp_path)


@pytest.mark.parametrize("folder", ["infra", "infra/constructs", "infra/stacks"])
@pytest.mark.parametrize("line", ["x.kind == 'batch'", "'kind: batch' in x", "isinstance(x, EcsBatch)", "x == 'vllm'"])
def test_a_choice_in_the_stacks_is_reported(tmp_path: Path, folder: str, line: str) -> None:
    _write(tmp_path / folder / "main.py", f"def check(x):\n    return {line}\n")
    assert list_violations(tmp_path)


def test_a_match_by_such_a_name_is_reported(tmp_path: Path) -> None:
    _write(tmp_path / "src/llm_serving/cli/main.py", "match x:\n    case 'batch':\n        pass\n")
    assert list_violations(tmp_path) == ["src/llm_serving/cli/main.py:2: batch"]


@pytest.mark.parametrize(
    "text",
    [
        '{% if deployment.kind == "batch" %}',
        "{%- elif role.engine == 'vllm' -%}",
        '{{ 1 if deployment.target == "ecs" else 2 }}',
        '{{- if eq .Values.framework "plain" }}',
        '{{- else if eq .Values.engine "vllm" }}',
    ],
)
@pytest.mark.parametrize("file", ["blueprints/mine/ecs.yaml.j2", "charts/mine/templates/pods.yaml"])
def test_a_name_in_a_condition_of_a_template_is_reported(tmp_path: Path, file: str, text: str) -> None:
    _write(tmp_path / file, f"a: b\n{text}\n")
    [violation] = list_violations(tmp_path)
    assert violation.startswith(f"{file}:2: ")


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("src/llm_serving/targets/eks/target.py", "x == 'eks'"),
        ("src/llm_serving/kinds/batch/resolve.py", "isinstance(x, BatchDeployment)"),
        ("infra/stacks/batch.py", "x.kind == 'batch'"),
        ("src/llm_serving/fleet/groups.py", "x == 'eks'"),
    ],
)
def test_a_module_may_choose_by_its_own_name(tmp_path: Path, file: str, line: str) -> None:
    _write(tmp_path / file, f"def check(x):\n    return {line}\n")
    assert list_violations(tmp_path) == []


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True)
    file.write_text(text)
