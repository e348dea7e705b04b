"""Caps what EKS repairs by itself in a managed node group: at how many broken nodes it stops, how many at a time.

Terraform's AWS provider 5.100 turns repair on and off and knows no cap, which EKS has had since October 2025
(hashicorp/terraform-provider-aws#44603). So Terraform calls this function, once for each node group and cap.

Event: {"cluster": NAME, "group": NAME, "repair": a NodeRepairConfig of EKS's API}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import boto3


def handler(event: Mapping[str, Any], _context: Any = None) -> dict[str, Any]:
    """Set the cap; returns it, and whether it was changed. Called again it changes nothing."""
    eks = boto3.client("eks")
    identifiers = {"clusterName": event["cluster"], "nodegroupName": event["group"]}
    current = eks.describe_nodegroup(**identifiers)["nodegroup"].get("nodeRepairConfig", {})
    changed = current != event["repair"]
    if changed:
        eks.update_nodegroup_config(**identifiers, nodeRepairConfig=event["repair"])
        eks.get_waiter("nodegroup_active").wait(**identifiers, WaiterConfig={"Delay": 5, "MaxAttempts": 10})
    return {"group": event["group"], "repair": event["repair"], "changed": changed}
