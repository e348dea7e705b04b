"""AWS as the place of a deployment: what follows from the fleet and its account alone."""

from __future__ import annotations

from blueprints.deployment import Place
from infra import names
from infra.constructs import limits
from infra.errors import Unavailable
from infra.fleet import Fleet
from scripts.aws import Aws, refusals
from scripts.rehearsal import embedded_aws

NO_ACCOUNT = f"No AWS credentials were found: names hold {embedded_aws.ACCOUNT}, the embedded AWS's account, not yours."

SCRATCH = "/scratch"
"""The one folder that an engine's container may write to, beside /tmp."""


def find(target: str, fleet: Fleet, *, account: str | None = None) -> Place:
    """The place of a deployment.

    Args:
        account: AWS's number of it; asked of AWS where left out, and the embedded AWS's where nobody is signed in.
    """
    known = account or _account(fleet.region)
    number = known or embedded_aws.ACCOUNT
    return Place(
        target=target,
        region=fleet.region,
        bucket=limits.bucket_name(fleet.name, "models", number, fleet.region),
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
