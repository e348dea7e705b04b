"""No module but the edges changes this process's environment, or takes the AWS session from it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

LIBRARY = Path(__file__).parents[2] / "src" / "llm_serving"

WRITERS = {
    "cli/main.py": "--debug, for this process and those that it starts",
    "console.py": "typer's, which has the width of helps from nowhere else",
    "kinds/gateway/cloud_program.py": "of the program that it becomes",
    "kinds/gateway/gateway_program.py": "LiteLLM's, which takes this process's place",
    "operations/add_ons.py": "Helm's own, which would lead it to another cluster than the kubeconfig's",
    "targets/local/engine_imports.py": "the engine's own process",
    "targets/local/engine_plugins.py": "the engine's own process",
}
"""Modules that set a variable, which has nothing to do with AWS, and why."""

READERS = {
    "aws/session.py": "what opens it",
    "hub/access_token.py": "the user's own token, which HF_TOKEN_SECRET of the same environment names",
    "operations/context.py": "of each operation",
    "targets/planning.py": "of a plan that is given none",
}
"""Modules of the library that open the session of the user's environment, and why; the command line does too."""

_CHANGING_METHODS = {"update", "setdefault", "pop", "popitem", "clear"}


def find_writes(source: str) -> list[int]:
    """Lines that change os.environ: an assignment or deletion of an item, a changing method, putenv or unsetenv."""
    return sorted({node.lineno for node in ast.walk(ast.parse(source)) if _changes_environment(node)})


def _changes_environment(node: ast.AST) -> bool:
    match node:
        case ast.Subscript(value=target, ctx=ast.Store() | ast.Del()):
            return _is_environment(target)
        case ast.Call(func=ast.Attribute(value=target, attr=name)) if name in _CHANGING_METHODS:
            return _is_environment(target)
        case ast.Call(func=ast.Attribute(value=ast.Name(id="os"), attr="putenv" | "unsetenv")):
            return True
        case ast.AugAssign(target=target):
            return _is_environment(target)
    return False


def _is_environment(node: ast.AST) -> bool:
    return ast.unparse(node) in ("os.environ", "environ")


def list_modules() -> Iterator[tuple[str, str]]:
    for file in sorted(LIBRARY.rglob("*.py")):
        yield file.relative_to(LIBRARY).as_posix(), file.read_text(encoding="utf-8")


def test_no_module_changes_the_environment_but_those_with_a_reason() -> None:
    writers = {name for name, source in list_modules() if find_writes(source)}
    assert writers == set(WRITERS)


@pytest.mark.parametrize(
    "line",
    [
        'os.environ["AWS_PROFILE"] = "mine"',
        'del os.environ["AWS_PROFILE"]',
        'os.environ.update({"AWS_PROFILE": "mine"})',
        'os.environ.pop("AWS_PROFILE", None)',
        'os.environ |= {"AWS_PROFILE": "mine"}',
        'os.putenv("AWS_PROFILE", "mine")',
        'environ["AWS_PROFILE"] = "mine"',
    ],
)
def test_every_change_of_the_environment_is_found(line: str) -> None:
    assert find_writes(f"import os\nfrom os import environ\n{line}\n") == [3]


@pytest.mark.parametrize("line", ['os.environ["A"]', 'os.environ.get("A")', '{**os.environ, "A": "1"}', 'x["A"] = 1'])
def test_reading_is_no_change(line: str) -> None:
    assert find_writes(line) == []


def test_the_users_session_is_opened_at_the_edge_alone() -> None:
    readers = {
        name
        for name, source in list_modules()
        if "AwsSession.from_environment(" in source or "def from_environment(" in source
        if not name.startswith("cli/")
    }
    assert readers == set(READERS)
    direct = {name for name, source in list_modules() if "AwsSession(" in source and "class AwsSession" not in source}
    assert direct == {"rehearsal/emulator.py"}, "with all of its variables"
