"""`blueprint validate`: load-tests a deployment and checks its SLO."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llm_serving.options.arguments import FLEET, TARGET, AsJson, Fleet, Folder, Origin, Target, require_url
from llm_serving.settings.errors import InputError
from llm_serving.targets.base import LoadOrigin
from llm_serving.workflows import serving


def validate(
    folder: Folder,
    fleet: Fleet = FLEET,
    target: Target = TARGET,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            callback=require_url,
            help="Another endpoint of the deployment, such as a gateway's. BLUEPRINT_API_KEY is its bearer token, sent "
            "only by https or to this machine.",
        ),
    ] = None,
    requests: Annotated[
        int | None, typer.Option(min=1, help="Number of measured requests, instead of the blueprint's.")
    ] = None,
    user: Annotated[
        Path | None,
        typer.Option(metavar="FILE.py", help="Your own Locust user; start from src/llm_serving/validation/user.py."),
    ] = None,
    driver: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Another load generator for the same prompts: aiperf, guidellm, inference-perf or vllm-bench. "
            "Installed on demand.",
        ),
    ] = None,
    origin: Origin = None,
    as_json: AsJson = False,
) -> None:
    """Load-test a deployment against its SLO.

    Sends the blueprint's traffic and writes a report to runs/NAME/; exits 1 and lists the objectives that were missed.
    """
    serving.validate(
        folder,
        fleet,
        target,
        url=url,
        requests=requests,
        user=user,
        driver=driver,
        origin=_choose_origin(origin, driver),
        as_json=as_json,
    )


def _choose_origin(origin: LoadOrigin | None, driver: str | None) -> LoadOrigin | None:
    """Return from where the load is sent; other drivers run on this machine."""
    if driver is None:
        return origin
    if origin is LoadOrigin.CLUSTER:
        raise InputError(f'--load-from: "cluster": {driver} runs on this machine. Fix: use --load-from here.')
    return LoadOrigin.HERE
