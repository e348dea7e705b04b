"""Workers and the Batch API of a batch as pods on EKS: the roles that their service accounts take on.

The pods themselves are charts/batch.
"""

from __future__ import annotations

from infra.bindings.cdktf import TerraformStack
from infra.constructs import batch_roles, pod_identity
from infra.constructs.workflow import WorkflowContext
from llm_serving.fleet import names
from llm_serving.targets.eks.manifest import EksBatch, format_service_account


def add_roles(stack: TerraformStack, context: WorkflowContext, batch: EksBatch) -> None:
    """Add the roles of workers and of the Batch API, each tied to its own service account."""
    cluster = names.format_cluster_name(context.fleet)
    for service in batch.services:
        role, _ = batch_roles.add_program_role(
            stack, context, service, trust=pod_identity.build_trust_policy(cluster, context.account)
        )
        pod_identity.add_association(
            stack,
            service.name,
            cluster_name=cluster,
            namespace=batch.namespace,
            service_account=format_service_account(batch.name, service.name),
            role=role,
        )
