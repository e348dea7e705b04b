"""Traffic shares between releases on EKS: a route splits requests by weight.

The route is a release of the same chart without processes, so that Helm keeps its history and can roll back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml

from llm_serving import console
from llm_serving.fleet import names
from llm_serving.operations import add_ons as addons
from llm_serving.operations.kube_api import KubeApi, Manifest
from llm_serving.services import deployments
from llm_serving.settings.errors import CheckFailed, InputError, Unavailable, quote_value
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
        CheckFailed: the route has a deployment's name, or one of `weights` is not deployed.
        Unavailable: helm is missing, or the cluster does not respond.
        CommandFailed: the cluster rejects it.
    """
    namespace, separator, name = gateway.partition("/")
    if not (namespace and separator and name):
        raise InputError(
            f"--gateway: {quote_value(gateway)}: it is not a Gateway. Fix: write NAMESPACE/NAME, such as gateway/edge."
        )
    addons.require_tools()
    _require_route(route)
    _require_deployed(weights)
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
        CheckFailed: the route has a deployment's name, or one that had a share is not deployed any more.
        Unavailable: helm is missing, or the cluster does not respond.
        CommandFailed: there are no previous shares.
    """
    addons.require_tools()
    _require_route(route)
    for latest in json.loads(_query("history", route, "--max=1", "--output=json") or "[]"):
        earlier = _query("get manifest", route, f"--revision={latest['revision'] - 1}") or ""
        for manifest in helm.parse_objects(earlier):
            _require_deployed(_list_releases(manifest))
    _run_helm("rollback", route, log=log)


def find_routes(api: KubeApi, release: str) -> list[str]:
    """Find the routes that send a release a share of their requests; its own is none of them."""
    if not api.has_kind(helm.ROUTE):
        return []
    routes = api.list_objects(helm.ROUTE, names.SERVING_NAMESPACE, labels=f"app.kubernetes.io/instance!={release}")
    return sorted(str(route["metadata"]["name"]) for route in routes if release in _list_releases(route))


def _list_releases(route: Manifest) -> list[str]:
    """List the releases that have a share of a route's requests."""
    backends = (backend for rule in route["spec"].get("rules", ()) for backend in rule.get("backendRefs", ()))
    return [backend["name"] for backend in backends if backend.get("weight", 1)]


def _require_route(name: str) -> None:
    manifest = _query("get manifest", name)
    if manifest is not None and not helm.is_route(manifest):
        reason = "it is a deployment, whose processes a route of the same name would replace"
        raise CheckFailed(f"ROUTE: {name}: {reason}. Nothing was changed. Fix: choose another name for the route.")


def _require_deployed(releases: Iterable[str]) -> None:
    for release in releases:
        manifest = _query("get manifest", release)
        if manifest is None or helm.is_route(manifest):
            reason = "no deployment of this name is in the cluster, and its share of the requests would fail"
            raise CheckFailed(f"SHARE: {release}: {reason}. Nothing was changed. Fix: name one that you have deployed.")


def _query(command: str, release: str, *options: str) -> str | None:
    """Return what helm says of a release; None if there is none."""
    try:
        return helm.run_query(_build_command(*command.split(), release, *options), {})
    except Unavailable as error:
        if helm.NOT_FOUND in str(error):
            return None
        if helm.UNREACHABLE in str(error).lower():
            raise _build_unreachable(str(error)) from None
        raise


def _run_helm(*words: str, log: Path) -> None:
    try:
        console.run(_build_command(*words), log=log, timeout_s=_HELM_TIMEOUT_S)
    except console.CommandFailed as error:
        if helm.UNREACHABLE not in error.output.lower():
            raise
        raise _build_unreachable(error.output) from None


def _build_command(*words: str) -> list[str]:
    return ["helm", *words, "--namespace", names.SERVING_NAMESPACE]


def _build_unreachable(message: str) -> Unavailable:
    fix = "run aws eks update-kubeconfig --name CLUSTER, or blueprint platform tunnel where its endpoint is private"
    return Unavailable(f"{' '.join(message.split()).rstrip('.')}. Fix: {fix}.")
