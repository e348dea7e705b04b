"""A VPC's flow logs in an encrypted log group, written by a role that can do nothing else."""

from __future__ import annotations

from infra.bindings import aws
from infra.bindings.cdktf import TerraformStack
from infra.constructs import policy
from infra.constructs.account import Account
from infra.constructs.key import add_key, build_log_group_grant
from llm_serving.fleet.aws_limits import convert_to_days


def add_flow_logs(stack: TerraformStack, *, fleet: str, vpc_id: str, retention_s: float, account: Account) -> None:
    """Add flow logs of all traffic, accepted and rejected, retained for `retention_s` seconds."""
    group_name = f"/aws/vpc/{fleet}/flow-logs"
    kms_key = add_key(
        stack,
        "flow-logs-key",
        alias=f"{fleet}-flow-logs",
        description=f"Flow logs of the fleet {fleet}",
        account=account,
        grants=(build_log_group_grant(account, group_name),),
    )
    log_group = aws.cloudwatch_log_group.CloudwatchLogGroup(
        stack, "flow-logs", name=group_name, retention_in_days=convert_to_days(retention_s), kms_key_id=kms_key.arn
    )
    writer_role, writer_policy = _add_writer_role(stack, fleet, log_group, account)
    aws.flow_log.FlowLog(
        stack,
        "flow-log",
        vpc_id=vpc_id,
        traffic_type="ALL",
        log_destination_type="cloud-watch-logs",
        log_destination=log_group.arn,
        iam_role_arn=writer_role.arn,
        tags={"Name": fleet},
        depends_on=[writer_policy],
    )


def _add_writer_role(
    stack: TerraformStack, fleet: str, log_group: aws.cloudwatch_log_group.CloudwatchLogGroup, account: Account
) -> tuple[aws.iam_role.IamRole, aws.iam_role_policy.IamRolePolicy]:
    """Add the role with which VPC flow logs write to their log group, and its policy."""
    writer_role = aws.iam_role.IamRole(
        stack,
        "flow-logs-writer",
        name=f"{fleet}-{account.region}-flow-logs",
        description="Lets VPC flow logs write to their log group",
        assume_role_policy=policy.build_trust_policy(
            "vpc-flow-logs.amazonaws.com",
            # Without these another account's flow logs could borrow the role (the confused deputy).
            StringEquals={"aws:SourceAccount": account.id},
            ArnLike={"aws:SourceArn": account.build_arn("ec2", "vpc-flow-log/*")},
        ),
    )
    writer_policy = aws.iam_role_policy.IamRolePolicy(
        stack,
        "flow-logs-writing",
        name="write-flow-logs",
        role=writer_role.name,
        policy=policy.build_document(
            {
                "Effect": "Allow",
                "Action": [
                    "logs:CreateLogStream",
                    "logs:PutLogEvents",
                    "logs:DescribeLogGroups",
                    "logs:DescribeLogStreams",
                ],
                "Resource": [log_group.arn, f"{log_group.arn}:*"],
            }
        ),
    )
    return writer_role, writer_policy
