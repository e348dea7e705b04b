"""The table over a batch's Parquet results in the Glue Data Catalog, by which Athena and Spark find them.

Athena computes the partitions from the table's properties, so that neither a crawler nor a worker registers any. The
objects are encrypted by the results bucket's key; that the catalog's own entries are is a setting of the whole account.
"""

from __future__ import annotations

import json

from infra.bindings import aws
from infra.bindings.cdktf import TerraformStack
from llm_serving import paths
from llm_serving.fleet.aws_limits import convert_to_days
from llm_serving.fleet.model import Fleet
from llm_serving.kinds.batch.stack import BatchStack, ResultsTable

COLUMNS_FILE = paths.IMAGES / "batch-worker" / "batch" / "result_columns.json"
"""The columns that a worker writes, which reads them from this file too."""

TABLE = "results"

_FORMAT = "org.apache.hadoop.hive.ql.io.parquet"
"""Hive's classes for Parquet. Source: Athena user guide, "Parquet SerDe", 2026-11."""


def add_results_table(stack: TerraformStack, fleet: Fleet, name: str, batch: BatchStack, table: ResultsTable) -> None:
    """Add the database of the batch, and its table."""
    database = aws.glue_catalog_database.GlueCatalogDatabase(
        stack, "results-database", name=table.database, description=f"Results of {name}"
    )
    g = aws.glue_catalog_table
    columns = json.loads(COLUMNS_FILE.read_text(encoding="utf-8"))
    g.GlueCatalogTable(
        stack,
        "results-table",
        name=TABLE,
        database_name=database.name,
        description=f"A row for each row of the jobs of {name}",
        table_type="EXTERNAL_TABLE",
        parameters={"EXTERNAL": "TRUE", "classification": "parquet", **_build_projection(fleet, table)},
        partition_keys=[
            g.GlueCatalogTablePartitionKeys(name="team", type="string", comment="Whose job it is"),
            g.GlueCatalogTablePartitionKeys(name="date", type="string", comment="Of its submission, YYYY-MM-DD in UTC"),
        ],
        storage_descriptor=g.GlueCatalogTableStorageDescriptor(
            location=f"s3://{batch.bucket}/{batch.prefix}/results/",
            input_format=f"{_FORMAT}.MapredParquetInputFormat",
            output_format=f"{_FORMAT}.MapredParquetOutputFormat",
            ser_de_info=g.GlueCatalogTableStorageDescriptorSerDeInfo(
                serialization_library=f"{_FORMAT}.serde.ParquetHiveSerDe"
            ),
            columns=[g.GlueCatalogTableStorageDescriptorColumns(**column) for column in columns],
        ),
    )


def _build_projection(fleet: Fleet, table: ResultsTable) -> dict[str, str]:
    """How Athena computes partitions, which lie in folders of Hive's form: team=TEAM/date=DATE/.

    A job's folder below these is no partition: one of unknown values takes a condition on it in every query. A job is
    found by the column `job`. Source: Athena user guide, "Supported types for partition projection", 2026-11.
    """
    # S3 deletes a day or so after the time is over.
    days = convert_to_days(fleet.storage.results_kept) + 2
    return {
        "projection.enabled": "true",
        "projection.team.type": "enum",
        "projection.team.values": ",".join(table.teams),
        "projection.date.type": "date",
        "projection.date.format": "yyyy-MM-dd",
        "projection.date.range": f"NOW-{days}DAYS,NOW",
        "projection.date.interval": "1",
        "projection.date.interval.unit": "DAYS",
    }
