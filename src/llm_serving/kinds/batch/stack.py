"""The data of the stack batch-NAME, beside its services: queues, workflow, bucket, schedules, results table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from llm_serving.fleet.model import Name
from llm_serving.fleet.pool import Orchestrator
from llm_serving.kinds.batch.blueprint import Schedule
from llm_serving.services.rendered import S3Location
from llm_serving.settings.document import AllowSingleItem, Settings

STATE_MACHINE_FILE = Path(__file__).with_name("state_machine.asl.json")


class ResultsTable(Settings):
    """The table over Parquet results in the Glue Data Catalog."""

    database: Annotated[str, Field(pattern=r"^[a-z0-9_]{1,255}$")]
    teams: Annotated[tuple[Name, ...], AllowSingleItem(), Field(min_length=1)]
    """Whose results it shows."""


class BatchStack(Settings):
    """What the stack makes beside the services."""

    orchestrator: Orchestrator
    """Where the services run: as tasks of the stack, or as pods, which get its roles."""

    workflow: Annotated[str, Field(pattern=r"^[a-z0-9-]{3,80}$")]
    """FLEET-NAME: name of the state machine, and prefix of the queues' names."""

    bucket: str
    prefix: str
    """Prefix of all its objects in the bucket."""

    inputs: Annotated[tuple[S3Location, ...], AllowSingleItem()] = ()
    """Further places in S3 that jobs may be of."""

    takeover_s: Annotated[int, Field(ge=1, le=43_200)]
    """How long after a worker's last sign of life others get its messages."""

    control_queue: str
    inbox_queue: str
    uncached_queue: str = ""
    """Queue with a message for each chunk whose answers the results cache lacks; empty without such a cache."""

    run_queues: Annotated[tuple[str, ...], AllowSingleItem(), Field(min_length=1)]
    """Queues of chunks, one for each team and priority: a worker takes chunks of the highest priority first."""

    results_table: ResultsTable | None = None
    """None where results are no Parquet."""

    schedules: dict[Name, Schedule] = Field(default_factory=dict)
    """Each with its team and priority."""
