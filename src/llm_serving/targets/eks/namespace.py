"""What all releases share: namespace, service account, priority. `deploy` applies it, `render` writes it to a file."""

from __future__ import annotations

import yaml

from llm_serving.operations.kube_api import Manifest
from llm_serving.services.deployment import Deployment

FILE = "namespace.yaml"
"""Beside the rendered values, for those who install the chart themselves."""

GIVES_WAY = "gives-way"
"""PriorityClass of replicas that give their nodes to others. The template names it."""

PRIORITY = -10
"""Below pods without a class, which have 0, and the lowest for which cluster-autoscaler still starts nodes.

Source: kubernetes/autoscaler at 01ea19e, cluster-autoscaler/config/flags/flags.go, expendable-pods-priority-cutoff.
"""


def build_manifests(deployment: Deployment) -> list[Manifest]:
    """Build the namespace, the engines' service account, and the priority that a service asks for."""
    environment = deployment.environment
    needs_priority = any(service.placement.gives_way for service in deployment.services)
    return [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": environment.namespace,
                "labels": {
                    "app.kubernetes.io/managed-by": "blueprint",
                    # A rollout waits until the load balancer has found the new routers healthy.
                    "elbv2.k8s.aws/pod-readiness-gate-inject": "enabled",
                    # Pods with EFA or Neuron need `privileged`, and all share the namespace: `enforce` is its owner's.
                    "pod-security.kubernetes.io/audit": "restricted",
                },
            },
        },
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": environment.service_account, "namespace": environment.namespace},
            "automountServiceAccountToken": False,
        },
        *([build_priority_class()] if needs_priority else []),
    ]


def build_priority_class() -> Manifest:
    """Build the priority of replicas that give way."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": GIVES_WAY, "labels": {"app.kubernetes.io/managed-by": "blueprint"}},
        "description": "Replicas that give their nodes to others",
        "value": PRIORITY,
        "preemptionPolicy": "Never",
    }


def format_file(deployment: Deployment) -> str:
    """Format the file for `kubectl apply --filename`, or for Argo CD."""
    title = "# Namespace and service account of the releases. Rendered; apply before helm install.\n"
    return title + yaml.safe_dump_all(build_manifests(deployment), sort_keys=False)
