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
from llm_serving.targets.eks.target import CHART
from llm_serving.workloads.serving import processes

_LIMIT_S = 120


def shares(words: list[str]) -> dict[str, int]:
    """Weights by release, as `mine=90 mine-v2=10` says them.

    Raises:
        InputError: a word is no NAME=WEIGHT, or nothing would be served.
    """
    found: dict[str, int] = {}
    for word in words:
        name, sign, weight = word.partition("=")
        if not (name and sign and weight.isdigit() and int(weight) <= 1_000_000):
            why = "it is no deployment and its weight"
            raise InputError(f"SHARE: now {word!r}: {why}. Write NAME=WEIGHT, such as mine-v2=10.")
        if name in found:
            raise InputError(f"SHARE: now {word!r}: {name} has its weight already. Write each deployment once.")
        found[name] = int(weight)
    if not any(found.values()):
        raise InputError("SHARE: no deployment would get a request. Write a weight above 0, such as mine=100.")
    return found


def shift(route: str, wanted: Mapping[str, int], *, gateway: str, folder: Path, log: Path) -> None:
    """Shares the requests of `route` as `wanted` says, by weight.

    Args:
        gateway: NAMESPACE/NAME of the Gateway that carries the route.
        folder: where its values are written for people to read.

    Raises:
        InputError: `gateway` is none.
        Unavailable: helm is missing.
        CommandFailed: the cluster refuses it, or does not answer.
    """
    namespace, sign, name = gateway.partition("/")
    if not (namespace and sign and name):
        raise InputError(f"--gateway: now {gateway!r}: it is no Gateway. Write NAMESPACE/NAME, such as gateway/edge.")
    addons.require_tools({"helm": addons.TOOLS["helm"]})
    backends = [
        {"release": release, "port": processes.ROUTER_PORT, "weight": weight} for release, weight in wanted.items()
    ]
    values = {"route": {"gateway": {"name": name, "namespace": namespace, "section": ""}, "backends": backends}}
    file = folder / f"{route}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(values, sort_keys=False))
    words = ["helm", "upgrade", "--install", route, str(CHART), "--namespace", names.SERVING]
    console.run([*words, "--values", str(file)], log=log, timeout_s=_LIMIT_S)


def back(route: str, log: Path) -> None:
    """The shares before the last ones.

    Raises:
        Unavailable: helm is missing.
        CommandFailed: there is no earlier one, or the cluster does not answer.
    """
    addons.require_tools({"helm": addons.TOOLS["helm"]})
    console.run(["helm", "rollback", route, "--namespace", names.SERVING], log=log, timeout_s=_LIMIT_S)
