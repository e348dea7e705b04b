"""What the target `eks` does in its own way: pods of the chart charts/inference."""

from __future__ import annotations

from llm_serving.services.environment import Conventions

CONVENTIONS = Conventions(
    title="EKS",
    orchestrator="eks",
    is_kubernetes=True,
    # Source: awslabs/amazon-eks-ami, templates/shared/runtime/bin/setup-local-disks, `raid0`.
    node_disk="/mnt/k8s-disks/0",
    url="http://{deployment}.{namespace}.svc:{port}",
    engines_url="http://{deployment}-engines.{namespace}.svc:{port}",
)
