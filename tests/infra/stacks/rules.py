"""What no synthesized stack may hold; each rule names the places where it does."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from typing import Any

Stack = dict[str, Any]


def empty_structs(node: Any, path: str = "") -> Iterator[str]:
    """Lists that hold a struct without a value: CDKTF makes that of a dict with snake_case keys, without a word."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from empty_structs(value, f"{path}.{key}")
    elif isinstance(node, list):
        for index, value in enumerate(node):
            if isinstance(value, dict) and all(held is None for held in value.values()):
                yield f"{path}[{index}]"
            yield from empty_structs(value, f"{path}[{index}]")


def dicts_for_structs(source: str) -> Iterator[str]:
    """Lines of Python where a resource is given a dict inside a list.

    CDKTF drops each of its keys that has an underscore; where another key stays, nothing in the result shows it.
    """
    for node in ast.walk(ast.parse(source)):
        for keyword in node.keywords if isinstance(node, ast.Call) else ():
            inside = keyword.value.elts if isinstance(keyword.value, ast.List) else ()
            if any(isinstance(item, ast.Dict) for item in inside):
                yield f"line {node.lineno}: {keyword.arg}"


def resources(stack: Stack, kind: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Addresses and settings of a stack's resources."""
    for found, named in stack.get("resource", {}).items():
        if not kind or found == kind:
            yield from ((f"{found}.{name}", settings) for name, settings in named.items())


def statements(stack: Stack) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every statement of every policy, with the resource that it stands in."""
    for address, settings in resources(stack):
        for name in ("policy", "assume_role_policy"):
            text = settings.get(name)
            if isinstance(text, str) and text.startswith('{"Version"'):
                yield from ((address, statement) for statement in json.loads(text)["Statement"])


def wildcards(stack: Stack) -> Iterator[str]:
    """Statements that allow every action of a service, or anybody.

    One is meant: a key's policy hands the key to the account's IAM policies (`kms:*` for the account's root).
    """
    for address, statement in statements(stack):
        if statement["Effect"] != "Allow":
            continue
        principal = statement.get("Principal")
        delegation = address.startswith("aws_kms_key.") and str(principal).endswith(":root'}")
        actions = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
        if any(action == "*" or action.endswith(":*") for action in actions) and not delegation:
            yield f"{address} allows {actions}"
        if principal in ("*", {"AWS": "*"}):
            yield f"{address} allows everybody"


def open_doors(stack: Stack) -> Iterator[str]:
    """Security group rules that let the internet in."""
    for address, settings in resources(stack):
        if not address.startswith(("aws_security_group.", "aws_default_security_group.", "aws_vpc_security_group_")):
            continue
        if "egress_rule" in address:
            continue
        flat = json.dumps([settings.get("ingress", []), settings.get("cidr_ipv4"), settings.get("cidr_ipv6")])
        if "0.0.0.0/0" in flat or "::/0" in flat:
            yield address
