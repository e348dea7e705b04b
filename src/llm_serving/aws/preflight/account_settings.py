"""Settings of the whole account that stop instances, or the destroy: each is read, none is changed."""

from __future__ import annotations

import json
from collections.abc import Callable

from llm_serving.aws.preflight.check import Check, CheckResult
from llm_serving.aws.preflight.identity import Identity
from llm_serving.aws.session import AwsSession
from llm_serving.catalog.registry import find_domain
from llm_serving.fleet.checks import join_words
from llm_serving.fleet.model import Fleet, NewNetwork

_EBS_KEY = "alias/aws/ebs"
"""EBS's own key, which every role of the account may use."""

_KEY_ACTIONS = (
    *("kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:CreateGrant", "kms:DescribeKey"),
)
_AMAZON = "amazon"
"""Provider of the pinned AMIs of EKS, ECS and Bottlerocket."""

_RUNTIME_MONITORING = ("RUNTIME_MONITORING", "EKS_RUNTIME_MONITORING")


def list_checks(aws: AwsSession, fleet: Fleet, caller: Identity) -> list[Check]:
    """One for each setting; none in an embedded AWS, which has no such settings."""
    if aws.is_emulated:
        return []
    rows: list[tuple[str, Callable[[], CheckResult], tuple[str, ...]]] = [
        ("default EBS key", lambda: _check_ebs_key(aws, caller), ("ec2:GetEbsDefaultKmsKeyId",)),
        ("allowed AMIs", lambda: _check_allowed_images(aws), ("ec2:GetAllowedImagesSettings",)),
    ]
    if isinstance(fleet.network, NewNetwork):
        actions = ("guardduty:ListDetectors", "guardduty:GetDetector")
        rows.append(("GuardDuty", lambda: _check_runtime_monitoring(aws), actions))
        if fleet.network.nat:
            action = "ec2:DescribeVpcBlockPublicAccessOptions"
            rows.append(("VPC block public access", lambda: _check_public_access(aws), (action,)))
    return [Check("account", *row) for row in rows]


def _check_ebs_key(aws: AwsSession, caller: Identity) -> CheckResult:
    """Volumes name no key, so they get the default one, which the roles that start instances must be able to use.

    Source: EC2 Auto Scaling user guide, "Required AWS KMS key policy for use with encrypted volumes", 2026-11.
    """
    key = aws.client("ec2").get_ebs_default_kms_key_id()["KmsKeyId"]
    if key.endswith(_EBS_KEY):
        return CheckResult("default EBS key", "pass", key)
    message = f"{key} is the account's own: instances end as they start unless its policy lets Auto Scaling use it"
    fix = f"see that the key's policy has this statement, or one like it: {_format_key_policy(caller.account, key)}"
    return CheckResult("default EBS key", "warn", message, fix)


def _format_key_policy(account: str, key: str) -> str:
    """Return the statement that EBS's own key has: whoever of the account makes volumes may use the key for them.

    Source: KMS developer guide, "AWS KMS condition keys", kms:CallerAccount, 2026-11.
    """
    region = key.split(":")[3]
    conditions = {"kms:CallerAccount": account, "kms:ViaService": f"ec2.{region}.{find_domain(region)}"}
    statement = {
        "Effect": "Allow",
        "Principal": {"AWS": "*"},
        "Action": list(_KEY_ACTIONS),
        "Resource": "*",
        "Condition": {"StringEquals": conditions},
    }
    return json.dumps(statement)


def _check_allowed_images(aws: AwsSession) -> CheckResult:
    """Source: EC2 API reference, GetAllowedImagesSettings, 2026-11."""
    settings = aws.client("ec2").get_allowed_images_settings()
    criteria = settings.get("ImageCriteria", [])
    providers = sorted({provider for row in criteria for provider in row.get("ImageProviders", ())})
    if settings["State"] != "enabled" or _AMAZON in providers:
        return CheckResult("allowed AMIs", "pass", settings["State"])
    message = f"only AMIs of {join_words(providers) or 'no provider'} start; those of EKS and ECS are {_AMAZON}'s"
    return CheckResult("allowed AMIs", "fail", message, f"add {_AMAZON} to the image providers of Allowed AMIs")


def _check_public_access(aws: AwsSession) -> CheckResult:
    """Source: EC2 API reference, VpcBlockPublicAccessOptions, 2026-11."""
    options = aws.client("ec2").describe_vpc_block_public_access_options()["VpcBlockPublicAccessOptions"]
    mode = options["InternetGatewayBlockMode"]
    if mode != "block-bidirectional":
        return CheckResult("VPC block public access", "pass", mode)
    message = f"{mode}: no NAT gateway reaches the internet, so instances pull nothing from public registries"
    fix = "allow it, set nat: off with image_cache, or exclude the VPC (allow-egress) once the stack network is there"
    return CheckResult("VPC block public access", "warn", message, fix)


def _check_runtime_monitoring(aws: AwsSession) -> CheckResult:
    """Look for agents that GuardDuty manages: it puts an endpoint with a security group into every VPC.

    Source: GuardDuty user guide, "Using Infrastructure as Code (IaC) with GuardDuty automated security agents",
    2026-11.
    """
    client = aws.client("guardduty")
    managed: list[str] = []
    for detector in client.list_detectors()["DetectorIds"]:
        for feature in client.get_detector(DetectorId=detector).get("Features", []):
            if feature["Name"] in _RUNTIME_MONITORING and feature["Status"] == "ENABLED":
                rows = feature.get("AdditionalConfiguration", [])
                managed += [row["Name"] for row in rows if row["Status"] == "ENABLED"]
    if not managed:
        return CheckResult("GuardDuty", "pass", "no agents that it manages")
    message = f"{join_words(managed)}: GuardDuty puts an endpoint and a security group into the VPC; its destroy waits"
    fix = "before a destroy, delete the VPC's endpoint guardduty-data and its group GuardDutyManagedSecurityGroup-*"
    return CheckResult("GuardDuty", "warn", message, fix)
