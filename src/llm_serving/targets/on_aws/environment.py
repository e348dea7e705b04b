"""AWS as the place of a deployment: what follows from the fleet and its account alone."""

from __future__ import annotations

from llm_serving.aws.session import AwsSession, translate_errors
from llm_serving.fleet import aws_limits, names
from llm_serving.fleet.model import Fleet
from llm_serving.rehearsal import emulator
from llm_serving.settings.errors import Unavailable
from llm_serving.targets.conventions import load_conventions
from llm_serving.workloads.environment import Environment

NO_ACCOUNT = f"No AWS credentials were found: names hold {emulator.ACCOUNT}, the embedded AWS's account, not yours."

SCRATCH = "/scratch"
"""The one folder that an engine's container may write to, beside /tmp."""


def resolve_environment(target: str, fleet: Fleet, *, account: str | None = None) -> Environment:
    """The place of a deployment.

    Args:
        account: AWS's number of it; asked of AWS where left out, and the embedded AWS's where nobody is signed in.
    """
    own_account = account or _read_account(fleet.region)
    account_id = own_account or emulator.ACCOUNT
    return Environment(
        target=target,
        conventions=load_conventions(target),
        region=fleet.region,
        bucket=aws_limits.build_bucket_name(fleet.name, "models", account_id, fleet.region),
        env={"AWS_REGION": fleet.region},
        data_folder=SCRATCH,
        socket_folder="/tmp",
        registry=f"{account_id}.dkr.ecr.{fleet.region}.amazonaws.com/{fleet.name}",
        namespace=names.SERVING_NAMESPACE if target == "eks" else names.format_namespace(fleet),
        service_account=names.ENGINE_SERVICE_ACCOUNT if target == "eks" else "",
        emulated=() if own_account else (NO_ACCOUNT,),
    )


def _read_account(region: str) -> str | None:
    try:
        aws = AwsSession(region)
        if not aws.has_credentials():
            return None
        with translate_errors():
            return str(aws.client("sts").get_caller_identity()["Account"])
    except Unavailable:
        return None
