"""Versions side by side on EKS: a route before releases, which shares requests between them by weight.

The route is a release of the same chart with no process of its own, so that Helm keeps its history and goes back in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

from llm_serving import console
from llm_serving.fleet import names
from llm_serving.operations import add_ons as addons
from llm_serving.settings.errors import InputError
from llm_serving.targets.eks.release import CHART
from llm_serving.workloads.serving import processes

_HELM_TIMEOUT_S = 120


def parse_shares(arguments: list[str]) -> dict[str, int]:
    """Weights by release, as `mine=90 mine-v2=10` says them.

    Raises:
        InputError: a word is no NAME=WEIGHT, or nothing would be served.
    """
    weights: dict[str, int] = {}
    for argument in arguments:
        name, separator, weight = argument.partition("=")
        if not (name and separator and weight.isdigit() and int(weight) <= 1_000_000):
            reason = "it is no deployment and its weight"
            raise InputError(f"SHARE: now {argument!r}: {reason}. Fix: NAME=WEIGHT, such as mine-v2=10.")
        if name in weights:
            raise InputError(f"SHARE: now {argument!r}: {name} has its weight already. Fix: each deployment once.")
        weights[name] = int(weight)
    if not any(weights.values()):
        raise InputError("SHARE: no deployment would get a request. Fix: a weight above 0, such as mine=100.")
    return weights


def shift(route: str, weights: Mapping[str, int], *, gateway: str, folder: Path, log: Path) -> None:
    """Shares the requests of `route` as `wanted` says, by weight.

    Args:
        gateway: NAMESPACE/NAME of the Gateway that carries the route.
        folder: where its values are written for people to read.

    Raises:
        InputError: `gateway` is none.
        Unavailable: helm is missing.
        CommandFailed: the cluster refuses it, or does not answer.
    """
    namespace, separator, name = gateway.partition("/")
    if not (namespace and separator and name):
        raise InputError(f"--gateway: now {gateway!r}: it is no Gateway. Fix: NAMESPACE/NAME, such as gateway/edge.")
    addons.require_tools({"helm": addons.TOOLS["helm"]})
    backends = [
        {"release": release, "port": processes.ROUTER_PORT, "weight": weight} for release, weight in weights.items()
    ]
    values = {"route": {"gateway": {"name": name, "namespace": namespace, "section": ""}, "backends": backends}}
    file = folder / f"{route}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(values, sort_keys=False))
    command = ["helm", "upgrade", "--install", route, str(CHART), "--namespace", names.SERVING_NAMESPACE]
    console.run([*command, "--values", str(file)], log=log, timeout_s=_HELM_TIMEOUT_S)


def roll_back(route: str, log: Path) -> None:
    """The shares before the last ones.

    Raises:
        Unavailable: helm is missing.
        CommandFailed: there is no earlier one, or the cluster does not answer.
    """
    addons.require_tools({"helm": addons.TOOLS["helm"]})
    console.run(["helm", "rollback", route, "--namespace", names.SERVING_NAMESPACE], log=log, timeout_s=_HELM_TIMEOUT_S)
