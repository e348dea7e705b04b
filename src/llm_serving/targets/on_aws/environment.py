"""AWS as the place of a deployment: what follows from the fleet and its account alone."""

from __future__ import annotations

from llm_serving.aws.session import Aws, refusals
from llm_serving.fleet import aws_limits, names
from llm_serving.fleet.model import Fleet
from llm_serving.rehearsal import emulator
from llm_serving.settings.errors import Unavailable
from llm_serving.workloads.serving.deployment import Place

NO_ACCOUNT = f"No AWS credentials were found: names hold {emulator.ACCOUNT}, the embedded AWS's account, not yours."

SCRATCH = "/scratch"
"""The one folder that an engine's container may write to, beside /tmp."""


def find(target: str, fleet: Fleet, *, account: str | None = None) -> Place:
    """The place of a deployment.

    Args:
        account: AWS's number of it; asked of AWS where left out, and the embedded AWS's where nobody is signed in.
    """
    known = account or _account(fleet.region)
    number = known or emulator.ACCOUNT
    return Place(
        target=target,
        region=fleet.region,
        bucket=aws_limits.bucket_name(fleet.name, "models", number, fleet.region),
        environment={"AWS_REGION": fleet.region},
        data=SCRATCH,
        sockets="/tmp",
        registry=f"{number}.dkr.ecr.{fleet.region}.amazonaws.com/{fleet.name}",
        namespace=names.SERVING if target == "eks" else names.namespace(fleet),
        service_account=names.ENGINES if target == "eks" else "",
        emulated=() if known else (NO_ACCOUNT,),
    )


def _account(region: str) -> str | None:
    try:
        aws = Aws(region)
        if not aws.has_credentials():
            return None
        with refusals():
            return str(aws.client("sts").get_caller_identity()["Account"])
    except Unavailable:
        return None
