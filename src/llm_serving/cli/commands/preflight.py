"""`blueprint preflight`: whether the AWS account can hold the fleet; changes nothing."""

from __future__ import annotations

import json

import typer

from llm_serving.aws.preflight import report
from llm_serving.aws.session import AwsSession
from llm_serving.catalog import instances
from llm_serving.fleet.model import Fleet
from llm_serving.options import arguments
from llm_serving.settings.document import load
from llm_serving.settings.errors import CheckFailed
from llm_serving.tables import preflight_table


def preflight(fleet: arguments.Fleet = arguments.FLEET, as_json: arguments.AsJson = False) -> None:
    """Check whether the AWS account can hold the fleet.

    Checks permissions, quotas, zones, subnets, reservations and prices. Changes nothing. Exits 1 if a check fails,
    and 3 without credentials or network.
    """
    document = load(fleet, Fleet)
    result = report.run_preflight(document, instances.load(), AwsSession.from_environment(document.value.region))
    if as_json:
        print(json.dumps(result.build_payload(), indent=2))
    else:
        preflight_table.print_report(result)
    if result.counts["fail"]:
        raise typer.Exit(CheckFailed.exit_code)
