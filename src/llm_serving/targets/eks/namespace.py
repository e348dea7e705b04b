"""What all releases share: namespace, service account, priority. `deploy` applies it, `render` writes it to a file."""

from __future__ import annotations

from pathlib import Path

import yaml

from llm_serving.operations.kube_api import Kind, KubeApi, Manifest
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


def apply(api: KubeApi, deployment: Deployment) -> None:
    """Apply them, but for labels that are there: the namespace's owner may have set another level of Pod Security."""
    for manifest in build_manifests(deployment):
        metadata, kind = manifest["metadata"], Kind(manifest["apiVersion"], manifest["kind"])
        present = api.find(kind, metadata["name"], metadata.get("namespace")) or {"metadata": {}}
        labels = metadata.get("labels", {})
        labels |= {key: label for key, label in present["metadata"].get("labels", {}).items() if key in labels}
        api.apply([manifest])


def format_file(deployment: Deployment) -> str:
    """Format the file for `kubectl apply --filename`, or for Argo CD."""
    title = "# Namespace and service account of the releases. Rendered; apply before helm install.\n"
    return title + yaml.safe_dump_all(build_manifests(deployment), sort_keys=False)
