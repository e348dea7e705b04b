"""A Lambda function from one file of infra/functions: its archive, its role, its log, and nothing else."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from infra.bindings import aws
from infra.bindings.cdktf import App
from infra.constructs import alarm, iam
from infra.constructs.fleet_stack import FleetStack, format_expression
from infra.constructs.iam import Statement, add_role, allow, list_policies
from infra.constructs.key import add_log_group, build_log_group_grant
from llm_serving.fleet import names
from llm_serving.fleet.model import Fleet
from llm_serving.settings.errors import Unavailable

FUNCTIONS_DIR = Path(__file__).parents[1] / "functions"

RUNTIME = "python3.13"
"""Brings boto3 along, of a version that AWS chooses. Supported until 2029-06-30; Lambda developer guide, "Lambda
runtimes", 2026-11."""


def add_function(
    stack: FleetStack,
    name: str,
    *,
    key: aws.kms_key.KmsKey,
    source: str,
    description: str,
    statements: Sequence[Statement],
    timeout_s: int,
    models: Sequence[str] = (),
) -> aws.lambda_function.LambdaFunction:
    """Add a function that runs the handler of one file.

    Calls may overlap, so a handler must be idempotent: a new account's quota is too small to reserve concurrency.

    Args:
        name: at most 16 characters, unique in the fleet.
        source: the file's name in infra/functions, without its suffix. It is not imported: handlers import boto3.
        key: encrypts its log; its policy needs `build_log_grants`.
        statements: what it may do beside writing its log.
        models: services whose API model comes along, from the pinned boto3, where the runtime's may be too old.
    """
    group_name = build_log_group_name(stack.fleet, name)
    log = add_log_group(stack, f"{name}-log", group_name, key, keep_days=90)
    events = stack.account.build_arn("logs", f"log-group:{group_name}:*")
    function_role = add_role(
        stack,
        name,
        description=description,
        trust=iam.build_trust_policy("lambda.amazonaws.com"),
        statements=(allow("Log", ["logs:CreateLogStream", "logs:PutLogEvents"], events), *statements),
    )
    archive = _write_archive(stack, FUNCTIONS_DIR / f"{source}.py", models)
    return aws.lambda_function.LambdaFunction(
        stack,
        name,
        function_name=names.format_function_name(stack.fleet, name),
        description=description,
        role=function_role.arn,
        runtime=RUNTIME,
        architectures=["arm64"],
        handler=f"{source}.handler",
        filename=format_expression("path.module") + f"/{archive.name}",
        source_code_hash=base64.b64encode(hashlib.sha256(archive.read_bytes()).digest()).decode(),
        memory_size=256,
        timeout=timeout_s,
        depends_on=[log, *list_policies(function_role)],
    )


def build_log_group_name(fleet: Fleet, name: str) -> str:
    """Return the log group that Lambda gives the function by its name."""
    return f"/aws/lambda/{names.format_function_name(fleet, name)}"


def build_log_grants(stack: FleetStack, functions: Sequence[str]) -> list[Statement]:
    """Build the statements of a key's policy by which it encrypts the functions' logs."""
    return [
        build_log_group_grant(stack, build_log_group_name(stack.fleet, name), f"Function{index}")
        for index, name in enumerate(functions)
    ]


def add_trigger(
    stack: FleetStack,
    function: aws.lambda_function.LambdaFunction,
    rule: aws.cloudwatch_event_rule.CloudwatchEventRule,
    **event: Any,
) -> None:
    """Have a rule call a function; `event` is the target's setting of what it is called with."""
    name = rule.node.id
    aws.cloudwatch_event_target.CloudwatchEventTarget(
        stack, f"{name}-target", rule=rule.name, arn=function.arn, target_id="function", **event
    )
    aws.lambda_permission.LambdaPermission(
        stack,
        f"{name}-permission",
        statement_id=name,
        action="lambda:InvokeFunction",
        function_name=function.function_name,
        principal=iam.EVENTS,
        source_arn=rule.arn,
    )


def add_failure_alarm(stack: FleetStack, name: str) -> None:
    """Ring where a function that is called each minute fails each time: what its own metrics say is missing then."""
    dimensions = {"FunctionName": names.format_function_name(stack.fleet, name)}
    alarm.add_alarm(
        stack,
        stack.fleet.name,
        f"{name}-fails",
        alarm.Metric("failed", "AWS/Lambda", "Errors", dimensions, "Sum"),
        construct_id=f"{name}-failure-alarm",
        description=f"The function {name} fails each time that it is called; its log says why",
        condition=alarm.Condition(0),
    )


def _write_archive(stack: FleetStack, source: Path, models: Sequence[str]) -> Path:
    """Write the archive beside the stack; the same source gives the same bytes."""
    folder = Path(App.of(stack).outdir) / "stacks" / stack.node.id
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{source.stem}.zip"
    content = {source.name: source.read_bytes()}
    for service in models:
        content |= _read_model(service)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, file_bytes in content.items():
            entry = zipfile.ZipInfo(name)  # which dates it 1980-01-01
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, file_bytes, zipfile.ZIP_DEFLATED)
    return file


def _read_model(service: str) -> dict[str, bytes]:
    """Read a service's newest API model as botocore finds it below `models/`."""
    # Not imported, which takes longer than all the rest of a synthesis.
    package = importlib.util.find_spec("botocore")
    if package is None or package.origin is None:
        raise Unavailable("botocore is not installed. Fix: run scripts/setup.")
    newest = max((Path(package.origin).parent / "data" / service).iterdir())
    return {f"models/{service}/{newest.name}/{file.name}": file.read_bytes() for file in newest.glob("service-2.json*")}
