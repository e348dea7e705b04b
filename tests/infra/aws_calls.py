"""The calls of AWS that a program makes, found from its code."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import botocore.session
from botocore import xform_name

MAKERS = {"boto3.client", "botocore.session.get_session().create_client"}
"""What makes a client of the service that is its first argument."""

PREFIXES = {"monitoring": "cloudwatch", "email": "ses", "states": "states"}
"""IAM's name of a service where it is not the one that requests are signed for."""

ACTIONS = {
    "s3:ListObjects": "s3:ListBucket",
    "s3:ListObjectsV2": "s3:ListBucket",
    "s3:HeadBucket": "s3:ListBucket",
    "s3:HeadObject": "s3:GetObject",
    "s3:UploadPart": "s3:PutObject",
    "s3:UploadPartCopy": "s3:PutObject",
    "s3:CreateMultipartUpload": "s3:PutObject",
    "s3:CompleteMultipartUpload": "s3:PutObject",
    "lambda:Invoke": "lambda:InvokeFunction",
    "sqs:SendMessageBatch": "sqs:SendMessage",
    "sqs:DeleteMessageBatch": "sqs:DeleteMessage",
    "sqs:ChangeMessageVisibilityBatch": "sqs:ChangeMessageVisibility",
}
"""Operations that IAM knows by another name. Source: service authorization reference, 2026-11."""


@functools.cache  # of the batch worker, four shapes of a stack ask
def find_actions(*modules: str) -> frozenset[str]:
    """The IAM actions of a program's calls.

    A client is what `boto3.client("SERVICE")` or botocore's `get_session().create_client("SERVICE")` returns, or a
    function of the program that makes one for the service that it is handed. Whoever is handed a client calls it by the
    name that it has, with or without underscores before.

    Args:
        modules: the code of each.

    Raises:
        ValueError: boto3 or botocore is used in a way that is not followed, or a client has no such method.
    """
    nodes = [node for code in modules for node in ast.walk(ast.parse(code))]
    makers = MAKERS | {function.name for function in nodes if _makes_client(function)}
    _require_followed(nodes, makers)
    services = _name_clients(nodes, makers)
    return frozenset(
        _find_action(service, call)
        for call in nodes
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and (service := services.get(_get_name(call.func.value)) or _get_service(call.func.value, makers))
    )


def _makes_client(node: ast.AST) -> TypeGuard[ast.FunctionDef]:
    """Whether it is a function that returns the client of the service that is its first argument."""
    return (
        isinstance(node, ast.FunctionDef)
        and bool(node.args.args)
        and isinstance(node.body[-1], ast.Return)
        and isinstance(call := node.body[-1].value, ast.Call)
        and ast.unparse(call.func).endswith(".client")
        and ast.unparse(call.args[0]) == node.args.args[0].arg
    )


def _name_clients(nodes: Sequence[ast.AST], makers: set[str]) -> dict[str, str]:
    """The service of each name that a client is assigned to."""
    services: dict[str, str] = {}
    for target, value in _list_assignments(nodes):
        options = value.values if isinstance(value, ast.BoolOp) else [value]
        for service in filter(None, (_get_service(option, makers) for option in options)):
            name = _get_name(target)
            if services.setdefault(name, service) != service:
                raise ValueError(f"{name} is a client of {services[name]} and of {service}")
    return services


def _list_assignments(nodes: Sequence[ast.AST]) -> Iterator[tuple[ast.expr, ast.expr]]:
    for node in nodes:
        if isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                yield from zip(target.elts, value.elts, strict=True)
            else:
                yield target, value


def _get_name(node: ast.AST) -> str:
    """The last name of `self._sqs` or `sqs`, without underscores before; empty for anything else."""
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name.lstrip("_")


def _get_service(node: ast.AST, makers: set[str]) -> str | None:
    if isinstance(node, ast.Call) and ast.unparse(node.func) in makers and isinstance(node.args[0], ast.Constant):
        return str(node.args[0].value)
    return None


def _require_followed(nodes: Sequence[ast.AST], makers: set[str]) -> None:
    inside = {name for node in nodes if _makes_client(node) for name in ast.walk(node)}
    names = [node for node in nodes if isinstance(node, ast.Name) and node.id == "boto3" and node not in inside]
    clients = [
        node
        for node in nodes
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "boto3.client" and _get_service(node, makers)
    ]
    if len(names) != len(clients):
        raise ValueError("boto3 is used otherwise than in boto3.client('SERVICE')")
    if any(
        isinstance(node, ast.Attribute) and node.attr == "create_client" and ast.unparse(node) not in makers
        for node in nodes
    ):
        raise ValueError("botocore is used otherwise than in botocore.session.get_session().create_client('SERVICE')")


@functools.cache
def _read_service(service: str) -> tuple[Any, Mapping[str, str]]:
    """Botocore's model of a service, and the operation of each method."""
    model = botocore.session.get_session().get_service_model(service)
    return model, {xform_name(name): name for name in model.operation_names}


def _find_action(service: str, call: ast.Call) -> str:
    model, operations = _read_service(service)
    assert isinstance(call.func, ast.Attribute)
    method = call.func.attr
    if method == "get_waiter":
        waiters = botocore.session.get_session().get_waiter_model(service)
        names = {xform_name(name): name for name in waiters.waiter_names}
        operation = waiters.get_waiter(names[ast.literal_eval(call.args[0])]).operation
    else:
        method = ast.literal_eval(call.args[0]) if method == "get_paginator" else method
        if method not in operations:
            raise ValueError(f"{service} has no operation {method}")
        operation = operations[method]
    prefix = model.metadata.get("signingName", model.metadata["endpointPrefix"])
    action = f"{PREFIXES.get(prefix, prefix)}:{operation}"
    return ACTIONS.get(action, action)
