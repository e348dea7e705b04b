"""The data of the stack gateway-NAME, beside its services: database, cache, load balancer."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from llm_serving.fleet.pool import Orchestrator
from llm_serving.services.load_balancer import StackLoadBalancer
from llm_serving.services.rendered import S3Location
from llm_serving.settings.document import AllowSingleItem, Settings

DATABASE_PORT, CACHE_PORT = 5432, 6379

DATABASE_CALL, CACHE_CALL = "database", "cache"
"""Names of what a program connects to, by which the stack lets it through."""

DATABASE, OWNER = "gateway", "gateway_owner"
"""Name of the database, and of the user that RDS creates."""

CACHE_NODES = 2
"""One in each of two zones."""

POSTGRES_VERSION = "17"
"""RDS takes its newest minor version. Source: RDS release notes, "Release calendar for Amazon RDS for PostgreSQL": in
standard support until 2030-02; 2026-11."""

AUTHORITY = "rds-ca-rsa2048-g1"
"""Who signs the database's certificate; images/gateway has the roots. Source: RDS user guide, "Using SSL/TLS to encrypt
a connection to a DB instance", 2026-11."""


PROFILE_BEGINS = ("global.", "us.", "eu.", "apac.", "jp.", "au.", "us-gov.")
"""How ids of inference profiles begin, which send requests to a model in several regions. Source: LiteLLM 1.106.0,
llms/bedrock/common_utils.py."""


class GatewayStack(Settings):
    """What the stack makes beside the services."""

    orchestrator: Orchestrator
    """Where the services run: as tasks of the stack, or as pods, which get its roles."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{1,39}$")]
    """FLEET-NAME: name of the database and of the cache."""

    place: Annotated[str, Field(pattern=r"^/[a-z0-9/-]{3,200}$")]
    """Name of the parameter of Systems Manager that tells the programs where everything is."""

    database_type: str
    database_gib: Annotated[int, Field(ge=20, le=32_768)]
    backup_days: Annotated[int, Field(ge=1, le=35)]
    cache_type: str
    cache_reserve_percent: Annotated[int, Field(ge=25, le=100)] = 25
    """Share of the cache's memory that is set aside; ElastiCache's own is 25."""

    bedrock_guardrail: str = ""
    """Id of the guardrail that the gateway asks."""

    bedrock_models: Annotated[tuple[str, ...], AllowSingleItem()] = ()
    """Ids of the models and inference profiles that answer routes."""

    audit_export: S3Location | None = None
    """Where the meter writes the audit too."""

    load_balancer: StackLoadBalancer | None = None
    """What has TLS before the gateways; None where clients call them. On EKS the chart has it."""
