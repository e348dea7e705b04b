"""Limits of AWS, checked before anything is created: each mistake has its line in the fleet file and a fix."""

from __future__ import annotations

from collections.abc import Iterator

from llm_serving.fleet import addresses
from llm_serving.fleet.model import Fleet, NewNetwork
from llm_serving.settings.document import Document
from llm_serving.settings.errors import Mistake

LOG_RETENTION_DAYS = (
    1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653,
)  # fmt: skip
"""Days that CloudWatch Logs keeps a log group. Source: API reference, PutRetentionPolicy, 2026-11."""

MAX_BUCKET_NAME_LENGTH = 63
"""Most characters of a bucket's name. Source: S3 user guide, "Bucket naming rules", 2026-11."""

_DAY_S = 86400.0
_ACCOUNT_DIGITS = 12


def convert_to_days(seconds: float) -> int:
    """A length of time in days; the fleet file takes whole days only."""
    return round(seconds / _DAY_S)


def build_bucket_name(fleet: str, purpose: str, account: str, region: str) -> str:
    """A name that no other account's bucket has, and the same every time."""
    return f"{fleet}-{purpose}-{account}-{region}"


def find_mistakes(document: Document[Fleet]) -> list[Mistake]:
    """Every field of the fleet that AWS would refuse."""
    return [*_check_bucket_names(document), *_check_network(document)]


def _check_bucket_names(document: Document[Fleet]) -> Iterator[Mistake]:
    fleet = document.value
    length = len(build_bucket_name(fleet.name, "results", "0" * _ACCOUNT_DIGITS, fleet.region))
    if length > MAX_BUCKET_NAME_LENGTH:
        yield document.build_mistake(
            ["name"],
            fleet.name,
            f"in {fleet.region} the results bucket's name would have {length} characters, "
            f"and S3 takes {MAX_BUCKET_NAME_LENGTH}",
            f"a name of at most {len(fleet.name) - (length - MAX_BUCKET_NAME_LENGTH)} characters",
        )


def _check_network(document: Document[Fleet]) -> Iterator[Mistake]:
    network = document.value.network
    if not isinstance(network, NewNetwork):
        return
    if network.flow_logs / _DAY_S not in LOG_RETENTION_DAYS:
        nearest = min(LOG_RETENTION_DAYS, key=lambda day: abs(day * _DAY_S - network.flow_logs))
        yield document.build_mistake(
            ["network", "flow_logs"],
            f"{convert_to_days(network.flow_logs)}d",
            "CloudWatch Logs supports only certain retention periods",
            f"{nearest}d, the nearest of {', '.join(map(str, LOG_RETENTION_DAYS))}",
        )
    for index, zone in enumerate(document.value.zones):
        if zone[-1] not in addresses.LETTERS:
            yield document.build_mistake(
                ["zones", index],
                zone,
                f"the address plan covers the zones {addresses.LETTERS[0]} to {addresses.LETTERS[-1]}",
                "another zone of the region, or a network of your own: {vpc: vpc-..., private_subnets: [...]}",
            )
