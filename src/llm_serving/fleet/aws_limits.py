"""What AWS itself refuses, said before anything is made: with the line of the fleet file, and what to write instead."""

from __future__ import annotations

from collections.abc import Iterator

from llm_serving.fleet import addresses
from llm_serving.fleet.model import Fleet, NewNetwork
from llm_serving.settings.document import Document
from llm_serving.settings.errors import Mistake

RETENTIONS = (
    1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653,
)  # fmt: skip
"""Days that CloudWatch Logs keeps a log group. Source: API reference, PutRetentionPolicy, 2026-11."""

BUCKET_NAME = 63
"""Most characters of a bucket's name. Source: S3 user guide, "Bucket naming rules", 2026-11."""

_DAY_S = 86400.0
_ACCOUNT_DIGITS = 12


def days(seconds: float) -> int:
    """A length of time in days; the fleet file takes whole days only."""
    return round(seconds / _DAY_S)


def bucket_name(fleet: str, purpose: str, account: str, region: str) -> str:
    """A name that no other account's bucket has, and the same every time."""
    return f"{fleet}-{purpose}-{account}-{region}"


def mistakes(document: Document[Fleet]) -> list[Mistake]:
    """Every field of the fleet that AWS would refuse."""
    return [*_bucket_names(document), *_network(document)]


def _bucket_names(document: Document[Fleet]) -> Iterator[Mistake]:
    fleet = document.value
    longest = len(bucket_name(fleet.name, "results", "0" * _ACCOUNT_DIGITS, fleet.region))
    if longest > BUCKET_NAME:
        yield document.mistake(
            ["name"],
            fleet.name,
            f"in {fleet.region} the results bucket's name would have {longest} characters, and S3 takes {BUCKET_NAME}",
            f"a name of at most {len(fleet.name) - (longest - BUCKET_NAME)} characters",
        )


def _network(document: Document[Fleet]) -> Iterator[Mistake]:
    network = document.value.network
    if not isinstance(network, NewNetwork):
        return
    if network.flow_logs / _DAY_S not in RETENTIONS:
        nearest = min(RETENTIONS, key=lambda day: abs(day * _DAY_S - network.flow_logs))
        yield document.mistake(
            ["network", "flow_logs"],
            f"{days(network.flow_logs)}d",
            "CloudWatch keeps logs for certain numbers of days only",
            f"{nearest}d, the nearest of {', '.join(map(str, RETENTIONS))}",
        )
    for index, zone in enumerate(document.value.zones):
        if zone[-1] not in addresses.LETTERS:
            yield document.mistake(
                ["zones", index],
                zone,
                f"the address plan has room for the zones {addresses.LETTERS[0]} to {addresses.LETTERS[-1]}",
                "another zone of the region, or a network of your own: {vpc: vpc-..., private_subnets: [...]}",
            )
