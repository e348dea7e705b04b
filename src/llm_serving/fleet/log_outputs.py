"""Where the log collector of EKS sends what containers write: names that the stack and the collector's chart share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llm_serving.fleet import names
from llm_serving.fleet.aws_limits import build_bucket_name
from llm_serving.fleet.model import Fleet
from llm_serving.settings import own_yaml

COLLECTOR = "aws-for-fluent-bit"
"""Its chart's release, and its service account."""

CLOUDWATCH, S3 = "cloudwatch", "s3"

GROUP, BUCKET = "container-logs", "logs"
"""Names of the log group and of the bucket in Terraform."""

PREFIX = "logs"
"""Of the objects in the bucket, and of the indexes in a domain."""

_FILE = Path(__file__).with_name("log_outputs.yaml")


def format_group_name(fleet: Fleet) -> str:
    """Return the log group, by the name that Container Insights shows."""
    return f"/aws/containerinsights/{names.format_cluster_name(fleet)}/application"


def format_bucket_name(fleet: Fleet, account: str) -> str:
    return build_bucket_name(fleet.name, PREFIX, account, fleet.region)


def build_values(fleet: Fleet) -> dict[str, Any]:
    """Return the values of each output of the chart; the fleet has one at the most."""
    values = {
        "region": fleet.region,
        "group": format_group_name(fleet),
        "bucket": format_bucket_name(fleet, str(fleet.account)),
        "key": f"/{PREFIX}/%Y/%m/%d/$TAG/%H-%M-%S-$UUID.gz",
        "host": fleet.logs.to,
        "index": f"{fleet.name}-{PREFIX}",
    }
    chosen = {CLOUDWATCH: "log_group", S3: "log_bucket", None: None}.get(fleet.logs.to, "log_domain")
    outputs: dict[str, Any] = own_yaml.fill_values(own_yaml.read(_FILE), values)
    return {name: output if name == chosen else {"enabled": False} for name, output in outputs.items()}
