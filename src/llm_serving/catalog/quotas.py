"""Service quotas that a fleet meets: AWS's codes, names and defaults, as data.

Codes, names and defaults: Service Quotas' own listings of accounts (`aws service-quotas list-service-quotas`), AWS
General Reference ("Amazon EC2 endpoints and quotas", "Amazon EKS ..."), VPC user guide ("Amazon VPC quotas"), read
2026-11. Classes of use: `UsageMetric` of the same listings. The default is what a new account has; what counts is the
account's own value, which preflight asks for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_serving.settings import own_yaml


@dataclass(frozen=True)
class Quota:
    """One quota of one service, for one region of an account."""

    service: str
    """Service Quotas' code of the service."""

    code: str
    name: str

    default: float
    """What a new account has."""

    unit: str = ""
    """What it counts, where the name does not say."""

    usage_class: str = ""
    """Dimension `Class` of CloudWatch's metric of its use, AWS/Usage; empty where none is published, as of Trn."""


@dataclass(frozen=True)
class Family:
    """Instance families whose vCPUs are counted together."""

    letters: tuple[str, ...]
    """What a type's name begins with, up to its first digit."""

    on_demand: Quota
    """Also counts what an on-demand capacity reservation holds, used or not."""

    spot: Quota


def _build_family(row: Mapping[str, Any]) -> Family:
    on_demand, spot = (Quota("ec2", unit="vCPUs", **row[key]) for key in ("on_demand", "spot"))
    return Family(tuple(row["letters"]), on_demand, spot)


FAMILIES = tuple(map(_build_family, own_yaml.read(Path(__file__).with_name("quotas.yaml"))))
STANDARD = FAMILIES[-1]

VPCS = Quota("vpc", "L-F678F1CE", "VPCs per Region", 5)
INTERNET_GATEWAYS = Quota("vpc", "L-A4707A72", "Internet gateways per Region", 5)
NAT_GATEWAYS = Quota("vpc", "L-FE5A380F", "NAT gateways per Availability Zone", 5)
ELASTIC_IPS = Quota("ec2", "L-0263D0A3", "EC2-VPC Elastic IPs", 5)
GATEWAY_ENDPOINTS = Quota("vpc", "L-1B52E74A", "Gateway VPC endpoints per Region", 20)
INTERFACE_ENDPOINTS = Quota("vpc", "L-29B6F2EB", "Interface VPC endpoints per VPC", 50)
NETWORK_INTERFACES = Quota("vpc", "L-DF5E4CA3", "Network interfaces per Region", 5000)
AUTO_SCALING_GROUPS = Quota("autoscaling", "L-CDE20ADC", "Auto Scaling groups per region", 500)
LAUNCH_TEMPLATES = Quota("ec2", "L-FB451C26", "Launch templates", 5000)
VOLUMES = Quota("ebs", "L-7A658B76", "Storage for General Purpose SSD (gp3) volumes, in TiB", 50, "TiB")
CLUSTERS = Quota("eks", "L-1194D53C", "Clusters", 100)
NODE_GROUPS = Quota("eks", "L-6D54EA21", "Managed node groups per cluster", 30)
NODES_PER_GROUP = Quota("eks", "L-BD136A63", "Nodes per managed node group", 450)


def find_family(instance_type: str) -> Family:
    """Return the family whose quota a type's vCPUs count against."""
    head = instance_type.split(".")[0]
    letters = head[: next((index for index, char in enumerate(head) if char.isdigit()), len(head))]
    return next((candidate for candidate in FAMILIES if letters in candidate.letters), STANDARD)
