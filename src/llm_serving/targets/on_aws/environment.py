"""The environment of a deployment on AWS: what follows from the fleet and its account."""

from __future__ import annotations

from llm_serving.catalog.registry import format_registry
from llm_serving.fleet import aws_limits, image_cache
from llm_serving.fleet.model import Fleet
from llm_serving.rehearsal import emulator
from llm_serving.services.environment import Conventions, Environment

NO_ACCOUNT = f"No AWS credentials found: names contain the embedded AWS's account {emulator.ACCOUNT}, not yours."

SCRATCH = "/scratch"
"""Directory that an engine's container may write to, besides /tmp."""


def resolve_environment(
    target: str,
    fleet: Fleet,
    *,
    conventions: Conventions,
    namespace: str,
    service_account: str = "",
    account: str | None = None,
) -> Environment:
    """Return the environment of a deployment in the fleet's account.

    Args:
        namespace: Kubernetes namespace, or private DNS namespace on ECS.
        service_account: Kubernetes service account of the engines.
        account: the account's number; the embedded AWS's if None, where there are no credentials.
    """
    account_id = account or emulator.ACCOUNT
    registry = format_registry(account_id, fleet.region)
    return Environment(
        target=target,
        conventions=conventions,
        region=fleet.region,
        account=account_id,
        bucket=aws_limits.build_bucket_name(fleet.name, "models", account_id, fleet.region),
        results_bucket=aws_limits.build_bucket_name(fleet.name, "results", account_id, fleet.region),
        env={"AWS_REGION": fleet.region},
        data_folder=SCRATCH,
        socket_folder="/tmp",
        registry=f"{registry}/{fleet.name}",
        image_prefixes=image_cache.build_prefixes(fleet, registry),
        namespace=namespace,
        service_account=service_account,
        emulated=() if account else (NO_ACCOUNT,),
    )
