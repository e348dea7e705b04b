"""`blueprint validate`: plays the blueprint's traffic against what is deployed, and says whether the SLO holds."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llm_serving import console
from llm_serving.cli.arguments import FLEET, LOCAL, AsJson, Fleet, Folder, Target, find_deployment_dir
from llm_serving.targets.on_aws import commands

if TYPE_CHECKING:
    from llm_serving.targets.local.deployment_dir import DeploymentDir
    from llm_serving.workloads.serving.deployment import Deployment

    ValidationSubject = tuple[Deployment, DeploymentDir, contextlib.AbstractContextManager[str | None]]
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

    deployment, directory, endpoint = (
        _plan_on_aws(folder, fleet, target, url) if target in commands.TARGETS else _find_local(folder, target, url)
    )
    with processes.handle_interrupts(), endpoint as endpoint_url:
        report, report_dir = run.validate(
            deployment,
            logs=directory.logs,
            runs=directory.reports,
            folder=folder,
            url=endpoint_url,
            requests=requests,
            user_file=user,
        )
    if as_json:
        print(report.model_dump_json(indent=2))
    else:
        console.print_result(validation_table.render(report, report_dir))
    run.require_slo(report)


def _plan_on_aws(folder: Path, fleet: Path, target: str, url: str | None) -> ValidationSubject:
    deployment_plan = commands.plan(folder, fleet, target)
    return deployment_plan.deployment, deployment_plan.directory, commands.open_tunnel(deployment_plan, url)


def _find_local(folder: Path, target: str, url: str | None) -> ValidationSubject:
    from llm_serving.settings.errors import Unavailable
    from llm_serving.workloads.serving import blueprint

    settings = blueprint.read(folder).value
    directory = find_deployment_dir(folder, target)
    deployment = directory.load_deployment()
    if deployment is None:
        command = f"blueprint deploy {console.shorten_path(folder)}"
        raise Unavailable(f"{directory.name} is not deployed from here; `{command}` brings it up")
    # Traffic and SLO are the file's as it is now: neither needs a new deployment.
    return (
        deployment.model_copy(update={"traffic": settings.traffic, "slo": settings.slo}),
        directory,
        contextlib.nullcontext(url),
    )
