"""IAM: policies as plain data, roles with what they may do, EKS Pod Identity, and who reads secrets.

Terraform gets the ARNs of secrets, never their values.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from infra.bindings import aws
from infra.bindings.cdktf import ITerraformDependable, TerraformResource, TerraformStack
from infra.constructs.fleet_stack import FleetStack
from llm_serving.fleet import names
from llm_serving.services.service import Secret, Service
from llm_serving.settings import own_yaml

_FOLDER = Path(__file__).with_name("policies")

Statement = Mapping[str, object]
"""One statement of a policy document, with IAM's own keys."""

EVENTS = "events.amazonaws.com"
"""EventBridge as a principal."""


def allow(
    sid: str,
    actions: str | Sequence[str],
    resources: str | Sequence[str],
    *,
    condition: Mapping[str, object] | None = None,
) -> Statement:
    """Build a statement, named with letters and digits, that allows actions on resources: ARNs, or "*" for all."""
    statement = {"Sid": sid, "Effect": "Allow", "Action": actions, "Resource": resources}
    return {**statement, "Condition": condition} if condition else statement


def read_statements(stack: FleetStack, name: str, **values: str | Sequence[str]) -> list[Statement]:
    """Return the statements of policies/NAME.yaml, with the stack's names and `values` in place of ${KEYS}.

    A list takes the place of a key that stands alone. A statement whose resource is empty is left out.
    """
    account = stack.account
    keys = {"account": account.id, "partition": account.partition, "region": account.region, **values}
    keys |= {"dns_suffix": account.dns_suffix, "cluster": stack.cluster_name, "fleet": stack.fleet.name}

    def fill_in(node: Any) -> Any:
        if isinstance(node, dict):
            return {fill_in(key): fill_in(child) for key, child in node.items()}
        if isinstance(node, list):
            return list(own_yaml.flatten(map(fill_in, node)))
        value = keys.get(node[2:-1], "")
        return Template(node).substitute(keys) if isinstance(value, str) else list(value)

    statements = [fill_in(statement) for statement in own_yaml.read(_FOLDER / f"{name}.yaml")]
    return [statement for statement in statements if statement.get("Resource", "*")]


def build_document(*statements: Statement) -> str:
    """Build a policy's JSON text. Values may be CDKTF tokens, which Terraform replaces."""
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)})


def build_trust_policy(service: str, **condition: Any) -> str:
    """Build a role's trust policy for an AWS service, such as vpc-flow-logs.amazonaws.com."""
    statement: dict[str, object] = {"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}
    return build_document({**statement, "Condition": condition} if condition else statement)


def allow_service(
    sid: str,
    service: str,
    actions: str | Sequence[str],
    resources: str | Sequence[str],
    *,
    condition: Mapping[str, object] | None = None,
) -> Statement:
    """Build a statement of a resource's own policy that allows an AWS service, such as events.amazonaws.com."""
    principal = {"Sid": sid, "Effect": "Allow", "Principal": {"Service": service}}
    return {**principal, **allow(sid, actions, resources, condition=condition)}


def allow_rules(sid: str, queue_arn: str, rule_arns: str | Sequence[str]) -> Statement:
    """Build a statement of a queue's policy that lets these EventBridge rules fill it, and no other account's."""
    own_rules = {"ArnEquals": {"aws:SourceArn": rule_arns}}
    return allow_service(sid, EVENTS, "sqs:SendMessage", queue_arn, condition=own_rules)


def require_tls(actions: str, resources: str | Sequence[str]) -> Statement:
    """Build a statement of a resource's own policy that denies whatever comes without TLS."""
    return {
        "Sid": "TlsOnly",
        "Effect": "Deny",
        "Principal": "*",
        "Action": actions,
        "Resource": resources,
        "Condition": {"Bool": {"aws:SecureTransport": "false"}},
    }


def add_role(
    stack: FleetStack,
    name: str,
    *,
    description: str,
    trust: str,
    managed: Sequence[str] = (),
    statements: Sequence[Statement] = (),
) -> aws.iam_role.IamRole:
    """Add a role named FLEET-REGION-`name`: roles are the account's, so the region is in their names.

    Args:
        name: at most 16 characters, for IAM takes 64 in all.
        trust: who may take it on, as `build_trust_policy` gives it.
        managed: AWS's own policies, named as below arn:aws:iam::aws:policy/.
        statements: what else it may do.
    """
    iam_role = aws.iam_role.IamRole(
        stack,
        f"{name}-role",
        name=names.format_role_name(stack.fleet.name, stack.account.region, name),
        description=description,
        assume_role_policy=trust,
        permissions_boundary=stack.fleet.permissions_boundary,
    )
    for arn in managed:
        aws.iam_role_policy_attachment.IamRolePolicyAttachment(
            stack,
            f"{name}-role-{arn.rpartition('/')[2]}",
            role=iam_role.name,
            policy_arn=f"arn:{stack.account.partition}:iam::aws:policy/{arn}",
        )
    if statements:
        aws.iam_role_policy.IamRolePolicy(
            stack, f"{name}-role-policy", name=name, role=iam_role.name, policy=build_document(*statements)
        )
    return iam_role


def list_policies(role: aws.iam_role.IamRole) -> list[ITerraformDependable]:
    """List what `add_role` gave a role.

    Whoever acts by the role names these in depends_on: made after its rights, and gone before they are, so that it can
    still clean up.
    """
    return [
        child
        for child in TerraformStack.of(role).node.children
        if isinstance(child, TerraformResource) and child.node.id.startswith(f"{role.node.id}-")
    ]


Cluster = aws.eks_cluster.EksCluster | aws.data_aws_eks_cluster.DataAwsEksCluster


def add_pod_role(
    stack: FleetStack,
    name: str,
    cluster: Cluster,
    *,
    namespace: str,
    service_account: str,
    description: str,
    statements: Sequence[Statement],
) -> None:
    """Add the role of a service account's pods. It is linked after the cluster; the account may come later."""
    trust = build_pod_trust_policy(stack)
    pod_role = add_role(stack, name, description=description, trust=trust, statements=statements)
    _add_association(stack, name, cluster.name, namespace, service_account, pod_role)


def build_pod_trust_policy(stack: FleetStack) -> str:
    """Trust policy of a role that EKS hands to pods of the fleet's cluster only."""
    return build_document(*read_statements(stack, "pod-trust", eks_cluster=names.find_eks_cluster(stack.fleet)))


def add_service_association(stack: FleetStack, deployment: str, service: str, pod_role: aws.iam_role.IamRole) -> None:
    """Add the link from the service account of a deployment's service, which its chart names, to a role."""
    cluster, account = names.find_eks_cluster(stack.fleet), f"{deployment}-{service}"
    _add_association(stack, service, cluster, names.SERVING_NAMESPACE, account, pod_role)


def _add_association(
    stack: FleetStack, name: str, cluster: str, namespace: str, service_account: str, pod_role: aws.iam_role.IamRole
) -> None:
    aws.eks_pod_identity_association.EksPodIdentityAssociation(
        stack,
        f"{name}-identity",
        cluster_name=cluster,
        namespace=namespace,
        service_account=service_account,
        role_arn=pod_role.arn,
    )


def find_secret_arns(stack: FleetStack, secrets: Iterable[Secret]) -> dict[str, str]:
    """Add lookups of secrets that have only a name; returns the ARN of each secret, by its name."""
    arns = {}
    for secret in dict.fromkeys(row.secret for row in secrets):
        if secret.startswith("arn:"):
            arns[secret] = secret
        else:
            secret_lookup = aws.data_aws_secretsmanager_secret.DataAwsSecretsmanagerSecret
            arns[secret] = secret_lookup(stack, f"secret-{len(arns)}", name=secret).arn
    return arns


def find_service_secrets(stack: FleetStack, services: Iterable[Service]) -> dict[str, str]:
    """Add lookups of the secrets that services read; returns the ARN of each secret, by its name."""
    return find_secret_arns(stack, (secret for service in services for secret in service.secrets))


def build_secret_statements(stack: FleetStack, secrets: Collection[Secret], arns: Mapping[str, str]) -> list[Statement]:
    """Allow to read secrets, and to decrypt those with a customer-managed key."""
    resources = list(dict.fromkeys(arns[row.secret] for row in secrets))
    keys = list(dict.fromkeys(row.key for row in secrets if row.key))
    return read_statements(stack, "secrets", secrets=resources, keys=keys)
