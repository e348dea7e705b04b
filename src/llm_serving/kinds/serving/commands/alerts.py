"""`blueprint alerts`: the alerts of a deployment as a plain rule file of Prometheus."""

from __future__ import annotations

import yaml

from llm_serving import console
from llm_serving.kinds.serving import alerts, objectives
from llm_serving.kinds.serving.deployment import narrow
from llm_serving.options.arguments import FLEET, Fleet, Folder
from llm_serving.services import inputs
from llm_serving.services.kinds import Capability
from llm_serving.targets import planning
from llm_serving.targets.eks.target import EksTarget


def print_alerts(folder: Folder, fleet: Fleet = FLEET) -> None:
    """Print a deployment's alerts on EKS as a rule file of Prometheus.

    They are those of the chart. Example: `blueprint alerts mine > rules.yaml && promtool check rules rules.yaml`.
    """
    inputs.require_capability(folder, Capability.ALERTS)
    deployment = narrow(planning.plan_offline(folder, fleet, EksTarget.name).deployment)
    for limit in objectives.list_unmeasured(deployment.slo, deployment.latency_objectives):
        console.err.print(f"{limit}: no alert: no bucket of {deployment.engine} measures it", markup=False)
    print(yaml.safe_dump(alerts.build_rules(deployment), sort_keys=False, width=10_000), end="")
