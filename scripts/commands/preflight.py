"""`blueprint preflight`: what of the fleet the AWS account can hold; asks, and changes nothing."""

from __future__ import annotations

import json

import typer

from scripts.commands import arguments


def preflight(
    fleet: arguments.Fleet = arguments.FLEET,
    as_json: arguments.AsJson = False,
) -> None:
    """Ask AWS whether the account can hold the fleet: permissions, quotas, zones, subnets, reservations, price.

    Nothing is changed. Ends with 0 where nothing fails, 1 where something does, 3 without credentials or network.
    """
    from infra import settings
    from infra.catalog import instances
    from infra.errors import AnswerIsNo
    from infra.fleet import Fleet
    from scripts.aws import Aws
    from scripts.preflight import picture, report

    document = settings.load(fleet, Fleet)
    found = report.run(document, instances.load(), Aws(document.value.region))
    if as_json:
        print(json.dumps(found.plain(), indent=2))
    else:
        picture.show(found)
    if found.counts["fail"]:
        raise typer.Exit(AnswerIsNo.exit_code)
