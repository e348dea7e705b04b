"""Traffic shares between releases on EKS: a route splits requests by weight.

The route is a release of the same chart without processes, so that Helm keeps its history and can roll back.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

from llm_serving import console
from llm_serving.fleet import names
from llm_serving.operations import add_ons as addons
from llm_serving.services import deployments
from llm_serving.settings.errors import InputError, Unavailable, quote_value
from llm_serving.targets.eks import helm

_HELM_TIMEOUT_S = 120

MAX_WEIGHT = 999
"""An Application Load Balancer's most, above which its controller fails and leaves all as it was.

Source: kubernetes-sigs/aws-load-balancer-controller v3.5.0, pkg/gateway/routeutils/backend.go.
"""


def parse_shares(arguments: list[str]) -> dict[str, int]:
    """Parse weights by release, such as `mine=90 mine-v2=10`.

    Raises:
        InputError: an argument is not NAME=WEIGHT, or all weights are 0.
    """
    weights: dict[str, int] = {}
    for argument in arguments:
        name, separator, weight = argument.partition("=")
        if not (name and separator and weight.isdecimal() and int(weight) <= MAX_WEIGHT):
            reason = f"it is not a deployment and its weight, {MAX_WEIGHT} at the most"
            raise InputError(f"SHARE: {quote_value(argument)}: {reason}. Fix: write NAME=WEIGHT, such as mine-v2=10.")
        if name in weights:
            raise InputError(f"SHARE: {quote_value(argument)}: {name} is listed twice. Fix: list each deployment once.")
        weights[name] = int(weight)
    if not any(weights.values()):
        raise InputError("SHARE: all weights are 0. Fix: write a weight above 0, such as mine=100.")
    return weights


def shift(route: str, weights: Mapping[str, int], *, chart: Path, gateway: str, folder: Path, log: Path) -> None:
    """Split the requests of a route by weight.

    Args:
        chart: that the releases are of, and the route too.
        gateway: NAMESPACE/NAME of the route's Gateway.
        folder: directory of the rendered values.

    Raises:
        InputError: `gateway` is not NAMESPACE/NAME.
        Unavailable: helm is missing, or the cluster does not respond.
        CommandFailed: the cluster rejects it.
    """
    namespace, separator, name = gateway.partition("/")
    if not (namespace and separator and name):
        raise InputError(
            f"--gateway: {quote_value(gateway)}: it is not a Gateway. Fix: write NAMESPACE/NAME, such as gateway/edge."
        )
    addons.require_tools()
    backends = [
        {"release": release, "port": deployments.ENTRY_PORT, "weight": weight} for release, weight in weights.items()
    ]
    gateway_values = {"name": name, "namespace": namespace, "section": ""}
    # Each release's router ends a request by its own timeout, and these may differ.
    values = {"route": {"gateway": gateway_values, "timeoutSeconds": 0, "backends": backends}}
    file = folder / f"{route}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(values, sort_keys=False))
    _run_helm("upgrade", "--install", route, str(chart), "--values", str(file), log=log)


def roll_back(route: str, log: Path) -> None:
    """Return to the previous shares.

    Raises:
        Unavailable: helm is missing, or the cluster does not respond.
        CommandFailed: there are no previous shares.
    """
    addons.require_tools()
    _run_helm("rollback", route, log=log)


def _run_helm(*words: str, log: Path) -> None:
    try:
        console.run(["helm", *words, "--namespace", names.SERVING_NAMESPACE], log=log, timeout_s=_HELM_TIMEOUT_S)
    except console.CommandFailed as error:
        if helm.UNREACHABLE not in error.output.lower():
            raise
        fix = "run aws eks update-kubeconfig --name FLEET, or blueprint platform tunnel where its endpoint is private"
        raise Unavailable(f"{' '.join(error.output.split()).rstrip('.')}. Fix: {fix}.") from None
