"""`blueprint validate`: plays the blueprint's traffic against what is deployed, and says whether the SLO holds."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llm_serving import console
from llm_serving.cli.arguments import FLEET, LOCAL, AsJson, Fleet, Folder, Target, run_of
from llm_serving.targets.on_aws import commands

if TYPE_CHECKING:
    from llm_serving.targets.local.deployment_dir import Run
    from llm_serving.workloads.serving.deployment import Deployment

    Loaded = tuple[Deployment, Run, contextlib.AbstractContextManager[str | None]]
    """A deployment, where its files lie, and the way to it: its URL, where that is not its own."""


def validate(
    folder: Folder,
    fleet: Fleet = FLEET,
    target: Target = LOCAL,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="Another address of the deployment, such as a gateway's.")
    ] = None,
    requests: Annotated[
        int | None, typer.Option(min=1, help="How many requests are counted, in place of the blueprint's number.")
    ] = None,
    user: Annotated[
        Path | None,
        typer.Option(metavar="FILE.py", help="Your own Locust user; src/llm_serving/validation/user.py shows how."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Load-test a deployment with the blueprint's traffic; exit 1 names each limit of its SLO that is missed."""
    from llm_serving import processes
    from llm_serving.tables import validation_table
    from llm_serving.validation import run

    deployed, at, way = (
        _on_aws(folder, fleet, target, url) if target in commands.TARGETS else _here(folder, target, url)
    )
    with processes.interruptible(), way as near:
        made, kept = run.validate(
            deployed, logs=at.logs, runs=at.reports, folder=folder, url=near, requests=requests, user=user
        )
    if as_json:
        print(made.model_dump_json(indent=2))
    else:
        console.result(validation_table.draw(made, kept))
    run.gate(made)


def _on_aws(folder: Path, fleet: Path, target: str, url: str | None) -> Loaded:
    made = commands.plan(folder, fleet, target)
    return made.deployment, made.run, commands.reachable(made, url)


def _here(folder: Path, target: str, url: str | None) -> Loaded:
    from llm_serving.settings.errors import Unavailable
    from llm_serving.workloads.serving import blueprint

    wanted = blueprint.read(folder).value
    at = run_of(folder, target)
    deployed = at.deployment()
    if deployed is None:
        how = f"blueprint deploy {console.near(folder)}"
        raise Unavailable(f"{at.name} is not deployed from here; `{how}` brings it up")
    # Traffic and SLO are the file's as it is now: neither needs a new deployment.
    return deployed.model_copy(update={"traffic": wanted.traffic, "slo": wanted.slo}), at, contextlib.nullcontext(url)
