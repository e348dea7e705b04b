"""What a gateway keeps on AWS: its database (RDS for PostgreSQL), its cache of counts (ElastiCache), its secret."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from infra.bindings import aws
from infra.constructs import alarm, iam, key, valkey
from infra.constructs.fleet_stack import Account, FleetStack
from infra.constructs.iam import Statement
from infra.constructs.network import Network
from infra.constructs.security_group import Peer, SecurityGroups, add_rule, add_security_group
from llm_serving.catalog import signals
from llm_serving.kinds.gateway.stack import (
    AUTHORITY,
    CACHE_CALL,
    CACHE_NODES,
    CACHE_PORT,
    DATABASE,
    DATABASE_CALL,
    DATABASE_PORT,
    OWNER,
    POSTGRES_VERSION,
    PROFILE_BEGINS,
    GatewayStack,
)
from llm_serving.services.service import Service

PORTS = {DATABASE_CALL: DATABASE_PORT, CACHE_CALL: CACHE_PORT}
"""Of the servers, by the name of the call."""

_GROWTH, _MAX_GIB = 10, 65_536
"""To how many times its storage RDS grows the database by itself, since a full one takes no record and no new key; and
the largest that RDS has. Source: RDS user guide, "Managing capacity automatically with Amazon RDS storage autoscaling",
2026-11."""


@dataclass(frozen=True)
class GatewayContext:
    """The gateway and the resources that its parts use."""

    stack: FleetStack
    name: str
    """The deployment's."""

    gateway: GatewayStack
    network: Network
    key: aws.kms_key.KmsKey


@dataclass(frozen=True)
class Servers:
    """What the programs connect to."""

    database: aws.db_instance.DbInstance
    cache: aws.elasticache_replication_group.ElasticacheReplicationGroup
    secret: aws.secretsmanager_secret.SecretsmanagerSecret
    place: aws.ssm_parameter.SsmParameter
    owner_secret: str
    """ARN of the secret with the password of the database's owner, which RDS makes and changes."""


def add_groups(context: GatewayContext) -> SecurityGroups:
    """Add the servers' groups, by the name of the call, which let nobody in yet."""
    return {
        call: add_security_group(
            context.stack,
            f"{call}-group",
            name=f"{context.gateway.name}-{call}",
            description=f"{call.capitalize()} of {context.name}",
            vpc_id=context.network.vpc_id,
        )
        for call in PORTS
    }


def let_in(stack: FleetStack, groups: SecurityGroups, name: str, client_id: str) -> None:
    """Let a security group reach both servers."""
    for call, port in PORTS.items():
        add_rule(
            stack, f"{call}-from-{name}", groups[call], "in", f"Programs: {name}", port, peer=Peer(group_id=client_id)
        )


def add_servers(context: GatewayContext, groups: SecurityGroups) -> Servers:
    """Add the servers, the gateway's secret, and the parameter that says where they are."""
    database = _add_database(context, groups)
    cache = valkey.add_cache(
        context.stack,
        context.gateway.name,
        description=f"Counts of {context.name}",
        node_type=context.gateway.cache_type,
        nodes=CACHE_NODES,
        port=CACHE_PORT,
        snapshot_days=1,
        reserve_percent=context.gateway.cache_reserve_percent,
        subnets=context.network.subnets,
        security_group=groups[CACHE_CALL].id,
        key=context.key,
    )
    secret = _add_secret(context)
    owner_secret = str(database.master_user_secret.get(0).secret_arn)
    addresses = {
        "database": database.address,
        "cache": cache.primary_endpoint_address,
        "owner": owner_secret,
        "secret": secret.arn,
    }
    place = aws.ssm_parameter.SsmParameter(
        context.stack,
        "place",
        name=context.gateway.place,
        description=f"Where the parts of {context.name} are",
        type="String",
        value=json.dumps(addresses),
    )
    return Servers(database, cache, secret, place, owner_secret)


def _add_secret(context: GatewayContext) -> aws.secretsmanager_secret.SecretsmanagerSecret:
    """Add the secret without a value, which the first gateway to start creates: Terraform's state has no secret."""
    return aws.secretsmanager_secret.SecretsmanagerSecret(
        context.stack,
        "secret",
        name_prefix=f"{context.gateway.name}-",
        description=f"What the keys of {context.name} come from",
        kms_key_id=context.key.arn,
        # As long as the key that encrypts it and the database's backups, which have no keys without it. The longest.
        recovery_window_in_days=key.DELETION_DAYS,
    )


def _add_database(context: GatewayContext, groups: SecurityGroups) -> aws.db_instance.DbInstance:
    """Add the database: private, encrypted, with a standby in another zone and backups, reached over TLS only."""
    gateway = context.gateway
    subnets = aws.db_subnet_group.DbSubnetGroup(
        context.stack, "database-subnets", name=gateway.name, subnet_ids=context.network.subnets
    )
    db_parameter_group = aws.db_parameter_group
    parameters = db_parameter_group.DbParameterGroup(
        context.stack,
        "database-parameters",
        name=gateway.name,
        family=f"postgres{POSTGRES_VERSION}",
        description=f"Database of {context.name}",
        parameter=[db_parameter_group.DbParameterGroupParameter(name="rds.force_ssl", value="1")],
    )
    return aws.db_instance.DbInstance(
        context.stack,
        "database",
        identifier=gateway.name,
        engine="postgres",
        engine_version=POSTGRES_VERSION,
        auto_minor_version_upgrade=True,
        ca_cert_identifier=AUTHORITY,
        instance_class=gateway.database_type,
        storage_type="gp3",
        allocated_storage=gateway.database_gib,
        max_allocated_storage=min(_MAX_GIB, _GROWTH * gateway.database_gib),
        # Else a larger one, or more storage, waits for the maintenance window of the week, full or not.
        apply_immediately=True,
        storage_encrypted=True,
        kms_key_id=context.key.arn,
        db_name=DATABASE,
        username=OWNER,
        manage_master_user_password=True,
        master_user_secret_kms_key_id=context.key.key_id,
        multi_az=True,
        publicly_accessible=False,
        db_subnet_group_name=subnets.name,
        vpc_security_group_ids=[groups[DATABASE_CALL].id],
        parameter_group_name=parameters.name,
        backup_retention_period=gateway.backup_days,
        copy_tags_to_snapshot=True,
        # Backups stay for as long after `destroy`: a final snapshot's name would be in the way of the next one.
        delete_automated_backups=False,
        skip_final_snapshot=True,
    )


def list_calls(context: GatewayContext, servers: Servers, service: Service) -> tuple[str, list[Statement]]:
    """Return the word for a program's role, and what it calls."""
    gateway, account = context.gateway, context.stack.account
    guardrail, export = gateway.bedrock_guardrail, (gateway.audit_export or "").removeprefix("s3://").rstrip("/")
    word = "gate" if service.is_entry else "meter"
    return word, iam.read_statements(
        context.stack,
        f"gateway-{word}",
        place=servers.place.arn,
        secret=servers.secret.arn,
        owner_secret=servers.owner_secret,
        key=context.key.arn,
        guardrail=account.build_arn("bedrock", f"guardrail/{guardrail}") if guardrail else "",
        models=[arn for model in gateway.bedrock_models for arn in _list_model_arns(account, model)],
        exports=account.build_bucket_arn(f"{export}/*") if export else "",
    )


def _list_model_arns(account: Account, model: str) -> Iterator[str]:
    """List what a role must be allowed to call: a model, or an inference profile and its model in every region."""
    is_profile = model.startswith(PROFILE_BEGINS)
    region, name = ("*", model.partition(".")[2]) if is_profile else (account.region, model)
    yield f"arn:{account.partition}:bedrock:{region}::foundation-model/{name}"
    if is_profile:
        yield account.build_arn("bedrock", f"inference-profile/{model}")


MIN_SPACE = 0.08
"""Free share of the storage that the database began with. At a tenth of what it has RDS makes it larger, unless it may
grow no more."""


def add_alarms(context: GatewayContext, servers: Servers) -> None:
    """Add the alarms. CPU and memory are measured as long as a server runs: where they are not, it is gone."""
    gateway = context.gateway
    database = [("DBInstanceIdentifier", gateway.name)]
    nodes = valkey.list_node_dimensions(gateway.name, CACHE_NODES)
    space_bytes = MIN_SPACE * gateway.database_gib * 2**30
    periods = 15  # minutes: an instance of the family t may work above its baseline for a while
    is_busy = alarm.Condition(alarm.MAX_PERCENT, periods=periods, missing="breaching")
    is_full = alarm.Condition(space_bytes, "LessThanThreshold", periods=periods)
    cpu = _add_alarm(context, "database-cpu", database, "Maximum", is_busy)
    _add_alarm(context, "database-space", database, "Minimum", is_full)
    memory = _add_alarm(context, "cache-memory", nodes, "Maximum", is_busy)
    # Or they ring while the servers are made.
    for resource, server in ((cpu, servers.database), (memory, servers.cache)):
        resource.add_override("depends_on", [f"{server.terraform_resource_type}.{server.friendly_unique_id}"])


def _add_alarm(
    context: GatewayContext,
    name: str,
    servers: list[tuple[str, str]],
    stat: str,
    condition: alarm.Condition,
) -> aws.cloudwatch_metric_alarm.CloudwatchMetricAlarm:
    """Add the alarm on a signal of the worst of some servers, each a dimension and its value."""
    metrics = [alarm.find_metric(f"m{number}", name, dict([server]), stat) for number, server in enumerate(servers)]
    function = "MIN" if stat == "Minimum" else "MAX"
    addition = ", or it does not run" if condition.missing == "breaching" else ""
    return alarm.add_alarm(
        context.stack,
        context.gateway.name,
        name,
        *metrics,
        alarm.Expression("e", f"{function}(METRICS())", name),
        description=f"{signals.load()[name].meaning}{addition}: {context.name}",
        signal=name,
        condition=condition,
    )
