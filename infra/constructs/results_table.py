"""Tables over Parquet results in the Glue Data Catalog, by which Athena and Spark find them.

Athena computes the partitions from the table's properties, so that neither a crawler nor a worker registers any. The
objects are encrypted by the results bucket's key; that the catalog's own entries are is a setting of the whole account.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infra.bindings import aws
from infra.constructs.fleet_stack import FleetStack
from llm_serving import paths
from llm_serving.fleet.aws_limits import convert_to_days
from llm_serving.fleet.model import Fleet
from llm_serving.kinds.batch.stack import BatchStack, ResultsTable
from llm_serving.kinds.streaming.stack import AnswerFiles

COLUMNS_FILE = paths.IMAGES / "batch-worker" / "batch" / "result_columns.json"
"""The columns that a batch's worker writes, which reads them from this file too."""

ANSWER_COLUMNS_FILE = paths.IMAGES / "stream-job" / "src" / "main" / "resources" / "answer_columns.json"
"""Those of a stream's job, likewise."""

TABLE = "results"

_FORMAT = "org.apache.hadoop.hive.ql.io.parquet"
"""Hive's classes for Parquet. Source: Athena user guide, "Parquet SerDe", 2026-11."""


def add_results_table(stack: FleetStack, name: str, batch: BatchStack, table: ResultsTable) -> None:
    """Add the database of the batch, and its table.

    A job's folder below the partitions is none: one of unknown values takes a condition on it in every query. A job is
    found by the column `job`.
    """
    _add_table(
        stack,
        database=table.database,
        description=f"A row for each row of the jobs of {name}",
        location=f"s3://{batch.bucket}/{batch.prefix}/results/",
        columns=COLUMNS_FILE,
        partitions={"team": "Whose job it is", "date": "Of its submission, YYYY-MM-DD in UTC"},
        projection={"projection.team.type": "enum", "projection.team.values": ",".join(table.teams)},
    )


def add_answers_table(stack: FleetStack, name: str, files: AnswerFiles) -> None:
    _add_table(
        stack,
        database=files.database,
        description=f"A row for each answer of {name}",
        location=f"s3://{files.bucket}/{files.prefix}/",
        columns=ANSWER_COLUMNS_FILE,
        partitions={"date": "Of its writing, YYYY-MM-DD in UTC"},
    )


def _add_table(
    stack: FleetStack,
    *,
    database: str,
    description: str,
    location: str,
    columns: Path,
    partitions: Mapping[str, str],
    projection: Mapping[str, str] | None = None,
) -> None:
    """Add a database with one table.

    Args:
        partitions: comment of each, which lie in folders of Hive's form: NAME=VALUE/. One is `date`.
        projection: how Athena computes those other than `date`.
    """
    own = aws.glue_catalog_database.GlueCatalogDatabase(
        stack, "results-database", name=database, description=description
    )
    catalog_table = aws.glue_catalog_table
    catalog_table.GlueCatalogTable(
        stack,
        "results-table",
        name=TABLE,
        database_name=own.name,
        description=description,
        table_type="EXTERNAL_TABLE",
        parameters={
            "EXTERNAL": "TRUE",
            "classification": "parquet",
            **(projection or {}),
            **_build_date_projection(stack.fleet),
        },
        partition_keys=[
            catalog_table.GlueCatalogTablePartitionKeys(name=name, type="string", comment=comment)
            for name, comment in partitions.items()
        ],
        storage_descriptor=_build_storage(location, columns),
    )


def _build_storage(location: str, columns: Path) -> dict[str, Any]:
    build_column = aws.glue_catalog_table.GlueCatalogTableStorageDescriptorColumns
    return {
        "location": location,
        "input_format": f"{_FORMAT}.MapredParquetInputFormat",
        "output_format": f"{_FORMAT}.MapredParquetOutputFormat",
        "ser_de_info": {"serialization_library": f"{_FORMAT}.serde.ParquetHiveSerDe"},
        "columns": [build_column(**column) for column in json.loads(columns.read_text(encoding="utf-8"))],
    }


def _build_date_projection(fleet: Fleet) -> dict[str, str]:
    """Build how Athena computes the days.

    Source: Athena user guide, "Supported types for partition projection", 2026-11.
    """
    # S3 deletes a day or so after the time is over.
    days = convert_to_days(fleet.storage.results_kept) + 2
    return {
        "projection.enabled": "true",
        "projection.date.type": "date",
        "projection.date.format": "yyyy-MM-dd",
        "projection.date.range": f"NOW-{days}DAYS,NOW",
        "projection.date.interval": "1",
        "projection.date.interval.unit": "DAYS",
    }
