"""What all releases share: namespace, service account, priority. `deploy` applies it, `render` writes it to a file."""

from __future__ import annotations

from pathlib import Path

import yaml

from llm_serving.operations.kube_api import Manifest
from llm_serving.services.deployment import Deployment
from llm_serving.settings import own_yaml

FILE = "namespace.yaml"
"""Beside the rendered values, for those who install the chart themselves."""

_FILE = Path(__file__).with_name("namespace.yaml")


def build_manifests(deployment: Deployment) -> list[Manifest]:
    """Build the namespace, the engines' service account, and the priority that a service asks for."""
    environment, templates = deployment.environment, own_yaml.read(_FILE)
    needs_priority = any(service.placement.gives_way for service in deployment.services)
    values = {"namespace": environment.namespace, "service_account": environment.service_account}
    manifests: list[Manifest] = own_yaml.fill_values(templates["shared"], values)
    return [*manifests, *([templates["priority"]] if needs_priority else [])]


def format_file(deployment: Deployment) -> str:
    """Format the file for `kubectl apply --filename`, or for Argo CD."""
    title = "# Namespace and service account of the releases. Rendered; apply before helm install.\n"
    return title + yaml.safe_dump_all(build_manifests(deployment), sort_keys=False)
