"""`blueprint preflight`: whether the AWS account can hold the fleet; changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llm_serving import console
from llm_serving.aws.preflight import report
from llm_serving.aws.preflight.check import Check
from llm_serving.aws.session import AwsSession
from llm_serving.fleet.model import Fleet
from llm_serving.options import arguments
from llm_serving.settings.document import load
from llm_serving.settings.errors import CheckFailed
from llm_serving.tables import preflight_table
from llm_serving.targets import planning
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.on_aws import images

Folders = Annotated[
    list[Path] | None,
    typer.Argument(metavar="DIR", help="Folders of blueprints, whose images the fleet's registry must have."),
]


def preflight(
    folders: Folders = None, fleet: arguments.Fleet = arguments.FLEET, as_json: arguments.AsJson = False
) -> None:
    """Check whether the AWS account can hold the fleet.

    Checks permissions, quotas, zones, subnets, reservations and prices, and the images of the blueprints that are
    named. Changes nothing. Exits 1 if a check fails, and 3 without credentials or network.
    """
    document = load(fleet, Fleet)
    aws = AwsSession.from_environment(document.value.region)
    plans = [
        planning.plan(folder, fleet, target=target, aws=aws)
        for folder in folders or ()
        for target in document.value.orchestrators
    ]
    checks = [_build_image_check(plan) for plan in plans]
    result = report.run_preflight(document, aws, further=checks)
    if as_json:
        console.print_json(result.build_payload())
    else:
        preflight_table.print_report(result)
    if result.counts["fail"]:
        raise typer.Exit(CheckFailed.exit_code)


def _build_image_check(plan: DeploymentPlan) -> Check:
    name = plan.deployment.name
    return Check(f"images of {name}", name, lambda: images.check_images(plan), ("ecr:DescribeImages",))
