"""A VPC's flow logs in an encrypted log group, written by a role that can do nothing else."""

from __future__ import annotations

from typing import Any

from infra.bindings import aws
from infra.constructs import policy
from infra.constructs.account import Account
from infra.constructs.key import for_log_group, key
from llm_serving.fleet.aws_limits import days


def flow_logs(stack: Any, *, fleet: str, vpc_id: str, kept_s: float, account: Account) -> None:
    """Adds flow logs of all traffic, accepted and rejected, kept for `kept_s` seconds."""
    group_name = f"/aws/vpc/{fleet}/flow-logs"
    encryption = key(
        stack,
        "flow-logs-key",
        alias=f"{fleet}-flow-logs",
        description=f"Flow logs of the fleet {fleet}",
        account=account,
        grants=(for_log_group(account, group_name),),
    )
    group = aws.cloudwatch_log_group.CloudwatchLogGroup(
        stack, "flow-logs", name=group_name, retention_in_days=days(kept_s), kms_key_id=encryption.arn
    )
    role = aws.iam_role.IamRole(
        stack,
        "flow-logs-writer",
        name=f"{fleet}-{account.region}-flow-logs",
        description="Lets VPC flow logs write to their log group",
        assume_role_policy=policy.assumed_by(
            "vpc-flow-logs.amazonaws.com",
            # Without these another account's flow logs could borrow the role (the confused deputy).
            StringEquals={"aws:SourceAccount": account.id},
            ArnLike={"aws:SourceArn": account.arn("ec2", "vpc-flow-log/*")},
        ),
    )
    writing = aws.iam_role_policy.IamRolePolicy(
        stack,
        "flow-logs-writing",
        name="write-flow-logs",
        role=role.name,
        policy=policy.document(
            {
                "Effect": "Allow",
                "Action": [
                    "logs:CreateLogStream",
                    "logs:PutLogEvents",
                    "logs:DescribeLogGroups",
                    "logs:DescribeLogStreams",
                ],
                "Resource": [group.arn, f"{group.arn}:*"],
            }
        ),
    )
    aws.flow_log.FlowLog(
        stack,
        "flow-log",
        vpc_id=vpc_id,
        traffic_type="ALL",
        log_destination_type="cloud-watch-logs",
        log_destination=group.arn,
        iam_role_arn=role.arn,
        tags={"Name": fleet},
        depends_on=[writing],
    )
