"""`blueprint validate`: load-tests a deployment and checks its SLO."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llm_serving import console, processes
from llm_serving.aws.session import AwsSession
from llm_serving.cli.arguments import FLEET, TARGET, AsJson, Fleet, Folder, Target
from llm_serving.targets import registry
from llm_serving.validation import base


def validate(
    folder: Folder,
    fleet: Fleet = FLEET,
    target: Target = TARGET,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="Another endpoint of the deployment, such as a gateway's.")
    ] = None,
    requests: Annotated[
        int | None, typer.Option(min=1, help="Number of measured requests, instead of the blueprint's.")
    ] = None,
    user: Annotated[
        Path | None,
        typer.Option(metavar="FILE.py", help="Your own Locust user; start from src/llm_serving/validation/user.py."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Load-test a deployment against its SLO.

    Sends the blueprint's traffic and writes a report to runs/NAME/; exits 1 and names each objective that is missed.
    """
    validate_blueprint(folder, fleet, target, url=url, requests=requests, user=user, as_json=as_json)


def validate_blueprint(
    folder: Path,
    fleet: Path,
    target: str,
    *,
    aws: AwsSession | None = None,
    url: str | None = None,
    requests: int | None = None,
    user: Path | None = None,
    as_json: bool = False,
) -> None:
    """Load-test a deployment with a session; with the user's own environment if None."""
    selected_target = registry.load_target(target)
    with processes.handle_interrupts(), selected_target.open_validation(folder, fleet, url, aws=aws) as inputs:
        validator = base.load_validator(inputs.deployment.kind)
        report, report_dir = validator.validate(
            inputs.deployment,
            logs=inputs.logs,
            runs=inputs.reports,
            folder=folder,
            url=inputs.url,
            requests=requests,
            user_file=user,
        )
    if as_json:
        print(report.model_dump_json(indent=2))
    else:
        console.print_result(validator.render(report, report_dir))
    validator.require_slo(report)
