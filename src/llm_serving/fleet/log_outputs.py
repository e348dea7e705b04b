"""Where the log collector of EKS sends what containers write: names that the stack and the collector's chart share."""

from __future__ import annotations

from typing import Any

from llm_serving.fleet import names
from llm_serving.fleet.aws_limits import build_bucket_name
from llm_serving.fleet.model import Fleet

COLLECTOR = "aws-for-fluent-bit"
"""Its chart's release, and its service account."""

CLOUDWATCH, S3 = "cloudwatch", "s3"

GROUP, BUCKET = "container-logs", "logs"
"""Names of the log group and of the bucket in Terraform."""

STORE = "/var/log/aws-for-fluent-bit"
"""On the node, which the pod sees there: what is not sent yet."""

PREFIX = "logs"
"""Of the objects in the bucket, and of the indexes in a domain."""

_WAITING = "1G"
"""Of a node's disk, for lines that an output did not take. The oldest go first."""


def format_group_name(fleet: Fleet) -> str:
    """Return the log group, by the name that Container Insights shows."""
    return f"/aws/containerinsights/{names.format_cluster_name(fleet)}/application"


def format_bucket_name(fleet: Fleet, account: str) -> str:
    return build_bucket_name(fleet.name, PREFIX, account, fleet.region)


def build_values(fleet: Fleet) -> dict[str, Any]:
    off: dict[str, Any] = {"enabled": False}
    return {
        "log_group": _build_group(fleet) if fleet.logs.to == CLOUDWATCH else off,
        "log_bucket": _build_bucket(fleet) if fleet.logs.to == S3 else off,
        "log_domain": _build_domain(fleet) if fleet.logs.domain else off,
    }


def _build_group(fleet: Fleet) -> dict[str, Any]:
    return {
        "enabled": True,
        "region": fleet.region,
        "logGroupName": format_group_name(fleet),
        "logStreamTemplate": "$kubernetes['namespace_name'].$kubernetes['pod_name'].$kubernetes['container_name']",
        "autoCreateGroup": False,  # Terraform makes it, with its key
        # By default it sends what CloudWatch did not take once more, after 5 to 11 s, and then drops it.
        "extraOutputs": f"Retry_Limit no_limits\nstorage.total_limit_size {_WAITING}",
    }


def _build_bucket(fleet: Fleet) -> dict[str, Any]:
    return {
        "enabled": True,
        "region": fleet.region,
        "bucket": format_bucket_name(fleet, str(fleet.account)),
        "s3KeyFormat": f"/{PREFIX}/%Y/%m/%d/$TAG/%H-%M-%S-$UUID.gz",
        "compression": "gzip",
        "totalFileSize": "10M",
        # A whole object at a time: an upload in parts would also have to decrypt.
        "usePutObject": True,
        # Up to ten minutes of lines wait here for their object; by default in the container, which a restart empties.
        "storeDir": f"{STORE}/s3",
        "storeDirLimitSize": _WAITING,
        "extraOutputs": f"storage.total_limit_size {_WAITING}",  # and lines for which there is no room
        # Of the object in front, each minute and later each ten: a day. With 5, which "False" means too, one is lost
        # every five minutes (Fluent Bit 4.2.2, plugins/out_s3/s3.c).
        "retryLimit": 300,
    }


def _build_domain(fleet: Fleet) -> dict[str, Any]:
    return {
        "enabled": True,
        "host": fleet.logs.to,
        "awsRegion": fleet.region,
        "logstashFormat": "On",  # an index a day
        "logstashPrefix": f"{fleet.name}-{PREFIX}",
        "replaceDots": "On",  # in labels' names, which would be objects
        # A piece is sent again as a whole, also where the domain takes all of it but one line that it refuses for
        # ever: for five minutes, and no line is there twice.
        "generateId": "On",
        "extraOutputs": f"Retry_Limit 10\nstorage.total_limit_size {_WAITING}",
    }
