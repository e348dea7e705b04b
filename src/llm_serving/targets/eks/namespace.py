"""The namespace and service account that all releases share: `deploy` applies them, `render` writes them to a file."""

from __future__ import annotations

import yaml

from llm_serving.operations.kube_api import Manifest
from llm_serving.services.environment import Environment

FILE = "namespace.yaml"
"""Beside the rendered values, for those who install the chart themselves."""


def build_manifests(environment: Environment) -> list[Manifest]:
    """Build the namespace and the engines' service account."""
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
                },
            },
        },
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": environment.service_account, "namespace": environment.namespace},
            "automountServiceAccountToken": False,
        },
    ]


def format_file(environment: Environment) -> str:
    """Format the file for `kubectl apply --filename`, or for Argo CD."""
    title = "# Namespace and service account of the releases. Rendered; apply before helm install.\n"
    return title + yaml.safe_dump_all(build_manifests(environment), sort_keys=False)
