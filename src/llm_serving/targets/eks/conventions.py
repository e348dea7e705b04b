"""What the target `eks` does in its own way: pods of the chart charts/inference."""

from __future__ import annotations

from llm_serving.services.environment import Conventions

CONVENTIONS = Conventions(
    title="EKS",
    orchestrator="eks",
    gateways=True,
    claims=True,
    workflows=True,
    # Source: awslabs/amazon-eks-ami, templates/shared/runtime/bin/setup-local-disks, `raid0`.
    node_disk="/mnt/k8s-disks/0",
    discovery="labels",
    # The labels that charts/inference puts on its pods.
    selector_labels={"app.kubernetes.io/instance": "{deployment}", "app.kubernetes.io/component": "{role}"},
    leader_labels={"inference/listens": "true"},
    url="http://{deployment}.{namespace}.svc:{port}",
    engines_url="http://{deployment}-engines.{namespace}.svc:{port}",
    # Kubernetes fills in the variables that a LeaderWorkerSet gives its pods.
    rank="$(LWS_WORKER_INDEX)",
    leader_address="$(LWS_LEADER_ADDRESS)",
)
