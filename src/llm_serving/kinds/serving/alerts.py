"""The chart's alerts of a deployment as a plain rule file, for a Prometheus that is not the operator's.

The alerts are `charts/inference/files/alerts.yaml`, from which the chart makes a PrometheusRule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from llm_serving import paths
from llm_serving.catalog.routers import REFUSED
from llm_serving.fleet import names
from llm_serving.kinds.serving.deployment import CHART, Role, ServingDeployment
from llm_serving.settings import own_yaml

FILE = paths.CHARTS / CHART / "files" / "alerts.yaml"

RUNBOOKS = "docs/runbook"
"""Folder with a page for each alert."""

PULL_LIMIT_S = 600
"""For a pod's image, in which Kubernetes too sees no lack of progress. Source: Deployment, progressDeadlineSeconds."""

UNFILLED = "${"
"""What a text still has if it names something that a role does not have."""


def build_rules(deployment: ServingDeployment) -> dict[str, Any]:
    """Build the rule file: a group for each role that has alerts."""
    alerts = own_yaml.read(FILE)
    groups = [
        {"name": f"{deployment.name}-{role.name}", "rules": list(_build_role(alerts, deployment, role))}
        for role in sorted(deployment.roles, key=lambda role: role.name)
    ]
    return {"groups": [group for group in groups if group["rules"]]}


def _build_role(alerts: list[dict[str, Any]], deployment: ServingDeployment, role: Role) -> Iterator[dict[str, Any]]:
    words = build_words(deployment, role)
    objectives = [
        {**words, **build_objective_words(objective.model_dump(), words["labels"])}
        for objective in deployment.latency_objectives
        if objective.role == role.name
    ]
    for alert in alerts:
        for filled in objectives if "${good}" in alert["expr"] else [words]:
            expression = fill(alert["expr"], filled)
            allowed = float(filled.get("allowed") or filled.get("allowed-errors") or 0)
            if UNFILLED not in expression and alert.get("burn", 0) * allowed < 1:
                place = {"namespace": names.SERVING_NAMESPACE, "release": deployment.name, "role": role.name}
                labels = {"severity": alert["severity"], **place}
                yield _build_rule(alert, expression, labels, filled)


def _build_rule(
    alert: Mapping[str, Any], expression: str, labels: Mapping[str, str], words: Mapping[str, str]
) -> dict[str, Any]:
    if "window" in alert:
        labels = {**labels, "window": alert["window"], "slo": words.get("slo", "errors")}
    return {
        "alert": alert["alert"],
        "expr": expression,
        **({"for": alert["for"]} if "for" in alert else {}),
        "labels": dict(labels),
        "annotations": {
            "summary": fill(alert["summary"], words),
            "runbook_url": f"{RUNBOOKS}/{alert['alert']}.md",
        },
    }


def build_words(deployment: ServingDeployment, role: Role) -> dict[str, str]:
    namespace = f'namespace="{names.SERVING_NAMESPACE}"'
    labels = f'{namespace},app_kubernetes_io_instance="{deployment.name}",app_kubernetes_io_component="{role.name}"'
    name = f"{deployment.name}-{role.name}"
    words = {"role": name, "labels": labels, "namespace": namespace}
    probes = [service.probe for service in deployment.list_services(role) if service.probe]
    words["start-limit"] = str(PULL_LIMIT_S + max(probe.period_s * probe.attempts for probe in probes))
    if role.replicas.min and not role.gives_way:
        words["standing"] = labels
    if role.scale and not role.scale.planner:
        words["autoscaler"] = f'{namespace},horizontalpodautoscaler="keda-hpa-{name}"'
    if role.kind == "engine":
        return {**words, **{signal: f"{metric}{{{labels}}}" for signal, metric in role.metrics.items()}}
    filters = {"errors": f'error_type!="{REFUSED}",'}
    series = {
        signal: f'{{__name__=~"{metric}",{filters.get(signal, "")}{labels}}}' for signal, metric in role.metrics.items()
    }
    if deployment.allowed_errors:
        words["allowed-errors"] = deployment.allowed_errors
    return {**words, **series}


def build_objective_words(objective: Mapping[str, str], labels: str) -> dict[str, str]:
    """Build what alerts may name of a limit on latencies."""
    return {
        "good": f'{objective["metric"]}_bucket{{{labels},le="{objective["edge"]}"}}',
        "all": f"{objective['metric']}_count{{{labels}}}",
        "slo": objective["name"],
        "measured": objective["measured"],
        "allowed": objective["allowed"],
    }


def fill(text: str, words: Mapping[str, str]) -> str:
    for name, word in words.items():
        text = text.replace(f"${{{name}}}", word)
    return text
