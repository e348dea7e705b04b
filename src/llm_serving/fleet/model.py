"""`fleet.yaml`: what to rent in one account and region. Plain typed data; nothing here knows AWS or CDKTF."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag

from llm_serving.catalog import account_needs
from llm_serving.catalog.eks import REGISTRY_ACCOUNTS, CsiDriver
from llm_serving.fleet.pool import FORMATS, Orchestrator, Zone
from llm_serving.fleet.pool import Pool as Pool
from llm_serving.fleet.pool import Reservation as Reservation
from llm_serving.settings.document import (
    AllowSingleItem,
    Conflict,
    OneOrMore,
    Settings,
    find_duplicates,
    parse_default,
)
from llm_serving.settings.units import Days, OrOff, Spend, Switch, build_error

Name = Annotated[str, FORMATS["name"]]
Region = Annotated[str, FORMATS["region"]]
TagKey = Annotated[str, FORMATS["tag-key"]]
TagValue = Annotated[str, FORMATS["tag-value"]]


def parse_network(value: str, example: str) -> ipaddress.IPv4Network:
    """Return a range of IPv4 addresses; a mistake's fix names the example."""
    try:
        return ipaddress.IPv4Network(value)
    except ValueError as error:
        raise build_error(f"it is not an IPv4 network: {error}", f"use a range such as {example}") from None


def _validate_vpc_cidr(value: str) -> str:
    network = parse_network(value, "10.0.0.0/16")
    if not 16 <= network.prefixlen <= 20:
        raise build_error("a VPC for a fleet takes /16 to /20", f"use a range such as {network.network_address}/16")
    if not network.is_private:
        raise build_error("it is not a private range", "use a range such as 10.0.0.0/16")
    return value


Cidr = Annotated[str, FORMATS["cidr"], AfterValidator(_validate_vpc_cidr)]


def _validate_caller_cidr(value: str) -> str:
    network = parse_network(value, "203.0.113.0/24")
    if network.prefixlen < 8:
        raise build_error(
            "it opens the cluster's endpoint to a large part of the internet", "name the ranges that you call from"
        )
    return value


CallerCidr = Annotated[str, FORMATS["caller-cidr"], AfterValidator(_validate_caller_cidr)]


def _validate_client(value: str) -> str:
    if value.startswith("sg-"):
        return value
    network = parse_network(value, "10.8.0.0/16")
    if network.prefixlen < 8 or network.is_global:
        raise build_error("it is not a private range", "use a range such as 10.8.0.0/16, or this one in public_from")
    return value


PrivateClient = Annotated[str, FORMATS["private-client"], AfterValidator(_validate_client)]

Email = Annotated[str, FORMATS["email"]]
RoleArn = Annotated[str, FORMATS["role-arn"]]
SecretArn = Annotated[str, FORMATS["secret-arn"]]
TierBucketName = Annotated[str, FORMATS["tier-bucket-name"]]
"""Of a bucket whose name stands in the host of its address: S3's certificate is for names without dots."""

KeyArn = Annotated[str, FORMATS["key-arn"]]
SecurityGroupId = Annotated[str, FORMATS["security-group-id"]]


def parse_arn_region(arn: str) -> str:
    return arn.split(":")[3]


def parse_arn_account(arn: str) -> str:
    return arn.split(":")[4]


MAX_CACHED_FLEET_NAME = 25
"""Longest name of a fleet with an image cache: prefixes have up to 30 characters, and end in - and four letters.

Source: ECR API reference, CreatePullThroughCacheRule, ecrRepositoryPrefix, 2026-11.
"""

_REGIONS_WITHOUT_CACHE = ("cn-", "us-gov-")
"""Beginnings of such regions' names. Source: ECR user guide, "Considerations for using pull through cache rules",
2026-11."""

DEADLOCKED_RELEASE = "v20260505"
"""The AL2023 release whose nodes wait forever for the pause image. Source: awslabs/amazon-eks-ami#2710."""


FlowLogs = Annotated[Days, OrOff()]
"""`30d`: seconds; `off`: 0."""


class NewNetwork(Settings):
    """A new VPC for the fleet, private by default."""

    cidr: Cidr = "10.0.0.0/16"
    """The VPC's address range: private, /16 to /20."""

    nat: Annotated[bool, Switch()] = True
    """NAT gateways, one a zone, so that private instances reach hubs and registries outside AWS. Without them nodes
    pull images through `image_cache`. ECR imports an image at its first pull, which takes a NAT gateway or a machine
    outside the VPC: pull each new image once from there (images/README.md)."""

    endpoint_access: Annotated[str, FORMATS["endpoint-access"]] = "open"
    """Identities that the VPC's endpoints serve: all with credentials, those of the fleet's account, or those of an
    organization by its id. Except for `open`, S3 serves only buckets of the same account or organization, and
    AWS's own for image layers, Amazon Linux and Systems Manager. Back to `open`, an apply leaves their policies: run
    `aws ec2 modify-vpc-endpoint --reset-policy --vpc-endpoint-id ID` for each."""

    flow_logs: FlowLogs = parse_default("30d")
    """Retention of the VPC's flow logs in a bucket of the fleet, or off. A GB costs 0.25 USD to deliver in us-east-1,
    half of what CloudWatch Logs takes, and S3's price to keep."""


class ExistingNetwork(Settings):
    """An existing VPC."""

    vpc: Annotated[str, FORMATS["vpc-id"]]
    """The VPC's id."""

    private_subnets: OneOrMore[Annotated[str, FORMATS["subnet-id"]]]
    """Ids of its private subnets, one a zone, in the order of `zones`."""

    distinct = ("private_subnets",)


def _select_network_tag(value: Any) -> str:
    if isinstance(value, dict):
        return "<new>" if value.keys().isdisjoint(ExistingNetwork.model_fields) else "<existing>"
    return "<existing>" if isinstance(value, ExistingNetwork) else "<new>"


Network = Annotated[
    Annotated[NewNetwork, Tag("<new>")] | Annotated[ExistingNetwork, Tag("<existing>")],
    Discriminator(_select_network_tag),
]


class ModelBucket(Settings):
    """A bucket of weights or adapters that the fleet does not own. In another account, the policies of the bucket and
    of its key must allow this account too."""

    bucket: Annotated[str, FORMATS["bucket-name"]]
    """Its name; engines may list and read all of it."""

    key: KeyArn | None = None
    """ARN of the customer-managed KMS key that encrypts its objects, if there is one."""


class TierBucket(Settings):
    """A bucket of cached prompts, which the fleet does not own. Its lifecycle rule removes what is old."""

    bucket: TierBucketName
    """Its name; engines may list, read, write and delete all of it."""

    key: KeyArn | None = None
    """ARN of the customer-managed KMS key that encrypts its objects, if there is one."""


class Storage(Settings):
    """Buckets and registries of the fleet."""

    results_kept: Days = parse_default("90d")
    """Retention of validation and batch results."""

    old_versions_kept: Days = parse_default("30d")
    """How long overwritten and deleted objects can be restored."""

    repositories: OneOrMore[Name] = (
        "vllm",
        "vllm-cpu",
        "router",
        "load-driver",
        "llama-cpp",
        "diffusion",
        *account_needs.list_images(),
    )
    """ECR repositories for the images of this project, one or a list."""

    model_buckets: Annotated[tuple[ModelBucket, ...], Field(max_length=20), AllowSingleItem()] = ()
    """More buckets from which engines may read weights and adapters, one or a list."""

    tier_buckets: Annotated[tuple[TierBucket, ...], Field(max_length=20), AllowSingleItem()] = ()
    """Buckets in which engines may keep cached prompts (`tuning.kv_tiers`), one or a list."""

    distinct = ("repositories",)

    def _check_buckets(self) -> Iterator[Conflict]:
        """Yield buckets that are listed twice, and those of weights that engines could write to."""
        yield from find_duplicates("model_buckets", [row.bucket for row in self.model_buckets])
        yield from find_duplicates("tier_buckets", [row.bucket for row in self.tier_buckets])
        weights = {row.bucket for row in self.model_buckets}
        for index, row in enumerate(self.tier_buckets):
            if row.bucket in weights:
                reason = "model_buckets has it too, and an engine that writes there could change the weights of all"
                yield Conflict(("tier_buckets", index, "bucket"), reason, "use another bucket", row.bucket)


class Logs(Settings):
    """What containers write."""

    to: Annotated[str, FORMATS["log-target"]] | None = None
    """Where AWS for Fluent Bit sends it from each node of EKS: `cloudwatch`, `s3`, or the host of a domain of
    OpenSearch Service. Default is nowhere: it stays on the node until its pod is gone. Tasks on ECS write to
    CloudWatch."""

    keep: Days = parse_default("90d")
    """How long CloudWatch or S3 keeps it, tasks' logs too; a number of days that CloudWatch takes. A domain has a
    policy of its own."""

    @property
    def keep_days(self) -> int:
        """`keep` in days."""
        return int(self.keep // _DAY_S)

    @property
    def domain(self) -> str:
        """Name of the domain of OpenSearch Service; empty for none."""
        is_host = self.to is not None and "." in self.to
        return str(self.to).partition(".")[0].partition("-")[2].rpartition("-")[0] if is_host else ""

    def _check_keep(self) -> Iterator[Conflict]:
        if self.keep_days not in RETENTION_DAYS:
            longer = min((days for days in RETENTION_DAYS if days > self.keep_days), default=RETENTION_DAYS[-1])
            reason = "CloudWatch Logs does not take this number of days"
            yield Conflict(("keep",), reason, f"set keep: {longer}d", f"{self.keep_days}d")


_DAY_S = 86400

RETENTION_DAYS = (
    *(1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653),
)
"""Source: CloudWatch Logs API reference, PutRetentionPolicy, 2026-11."""


class ImageCache(Settings):
    """ECR's pull-through cache of ECR Public, registry.k8s.io and Quay, and of the registries whose login is named.
    Cached repositories are named FLEET-REGISTRY/... and stay when the fleet is destroyed."""

    docker_hub: SecretArn | None = None
    """ARN of the Secrets Manager secret with Docker Hub's user name and access token; vLLM's image is there."""

    ghcr: SecretArn | None = None
    """ARN of the secret with a login for GitHub's registry; KEDA's images are there."""


class Eks(Settings):
    """The EKS cluster: a new one, or an existing one by its name."""

    cluster: Annotated[str, FORMATS["cluster-name"]] | None = None
    """Name of an existing cluster, in the VPC that `network` names. Pools then describe the nodes that it has, and
    `add_ons` the controllers; the stack `eks` holds only the engines' role (docs/own-cluster.md)."""

    node_security_groups: Annotated[tuple[SecurityGroupId, ...], Field(max_length=5), AllowSingleItem()] = ()
    """Security groups of that cluster's nodes, one or a list; default is the one that EKS made for the cluster."""

    # In standard support. Source: EKS user guide, "Understand the Kubernetes version lifecycle on EKS", 2026-11.
    version: Literal["1.34", "1.35", "1.36"] = "1.35"
    """Kubernetes version, in quotes."""

    public_from: Annotated[tuple[CallerCidr, ...], Field(max_length=40), AllowSingleItem()] = ()
    """Ranges that may call the cluster's endpoint from the internet; private by default."""

    private_from: Annotated[tuple[PrivateClient, ...], Field(max_length=40), AllowSingleItem()] = ()
    """Networks and security groups outside the cluster that may call its private endpoint: a VPN's range, a bastion's
    group."""

    admins: Annotated[tuple[RoleArn, ...], Field(max_length=20), AllowSingleItem()] = ()
    """ARNs of the IAM roles that administer the cluster, besides the role that applied the fleet last."""

    applied_by: RoleArn | None = None
    """ARN of the IAM role that applies the fleet. Its access entry stays whoever plans; without it, the entry follows
    the role that runs Terraform, and a plan by another role shows a change."""

    csi_drivers: Annotated[tuple[CsiDriver, ...], Field(max_length=3), AllowSingleItem()] = ()
    """Drivers of volumes besides EBS, one or a list: efs, fsx, s3; default is none. Each uses resources of every node.
    FSx's can create only file systems with the fleet's tag: `extraTags: fleet=NAME` in their StorageClass."""

    al2023: Annotated[str, FORMATS["eks-al2023"]] | None = None
    """Release of the AL2023 nodes' AMI; the pinned one by default."""

    bottlerocket: Annotated[str, FORMATS["eks-bottlerocket"]] | None = None
    """Release of the Bottlerocket nodes' AMI; the pinned one by default."""

    distinct = ("node_security_groups", "public_from", "private_from", "admins", "csi_drivers")

    def _check_cluster(self) -> Iterator[Conflict]:
        """Yield what says how to make a cluster, beside one that exists."""
        if self.cluster is None:
            if self.node_security_groups:
                reason = "nodes of a new cluster have the one that EKS makes"
                yield Conflict(("node_security_groups",), reason, "remove it, or name an existing cluster in `cluster`")
            return
        for name in sorted(self.model_fields_set - {"cluster", "node_security_groups"}):
            reason = f"the cluster {self.cluster} exists, and the fleet does not change it"
            yield Conflict((name,), reason, f"remove {name}, or `cluster` for a new one")

    def _check_release(self) -> Iterator[Conflict]:
        if self.al2023 == DEADLOCKED_RELEASE:
            reason = "nodes of this release never finish pulling the pause image (awslabs/amazon-eks-ami#2710)"
            yield Conflict(("al2023",), reason, "name another release")


class Ecs(Settings):
    """The ECS cluster."""

    al2023: Annotated[str, FORMATS["ecs-al2023"]] | None = None
    """Release of the container instances' AMI; the pinned one by default."""

    container_insights: Literal["standard", "enhanced"] = "standard"
    """Level of CloudWatch's metrics. `enhanced` adds those of every task and container, for 0.07 USD a metric and month
    in us-east-1: 1,000 tasks with ten metrics each cost 700 USD a month."""


class AddOns(Settings):
    """Optional parts, each off or on by one line."""

    observability: Annotated[bool, Switch()] = False
    """Metrics of accelerators, engines and nodes, with dashboards and alarms; on ECS a dashboard of CloudWatch for the
    cluster and for each deployment, 3 USD a month each beyond an account's first three."""

    gateway: Annotated[bool, Switch()] = False
    """Gateway API and inference gateway in front of the replicas, with the GatewayClasses alb and nlb; EKS."""

    schedulers: Annotated[bool, Switch()] = False
    """Queues and gangs for work that spans nodes: Kueue, with a queue of each pool's name, and LeaderWorkerSet; EKS."""

    operators: Annotated[bool, Switch()] = False
    """Operators of serving frameworks: KubeRay, KEDA and their like; EKS."""


EKS_ADD_ONS = ("gateway", "schedulers", "operators")
"""Add-ons that are Kubernetes controllers, without a counterpart on ECS."""


SYSTEM_POOL = "system"
"""By which the pods of a cluster that the fleet makes find its own nodes; `charts/platform.yaml` names it too."""

_EXAMPLE_REGIONS = ("us-west-2", "eu-west-1")

_ISOLATED_REGIONS = ("us-iso", "eu-iso")
"""Beginnings of regions in partitions of their own. Source: botocore 1.44.5, data/partitions.json, 2026-11."""


class Fleet(Settings):
    """All that is rented in one account and region."""

    name: Annotated[Name, Field(examples=["demo"])]
    """Prefix of all resource names."""

    account: Annotated[str, FORMATS["account-id"]] | None = None
    """Number of the only AWS account that the fleet may use, in quotes; default is the account that is signed in."""

    region: Region
    """AWS region."""

    zones: Annotated[tuple[Zone, ...], Field(min_length=1, max_length=6), AllowSingleItem()]
    """Availability Zones of the fleet, one to six; one subnet each."""

    orchestrator: Literal["eks", "ecs", "both"] = "eks"
    """Orchestrator of the containers."""

    spend_limit: Spend | None = None
    """Maximum cost of the fleet at full size, per hour on demand, including resources that cost without instances. It
    counts no traffic, logs and metrics."""

    budget_to: Annotated[tuple[Email, ...], Field(max_length=10), AllowSingleItem()] = ()
    """E-mail addresses that AWS Budgets notifies when 80% of the spend limit, times 730 hours, is spent in a month, or
    when all of it is forecast. It counts by the tag `fleet` in the fleet's region: nothing until the paying account
    activates this as a cost allocation tag, and then some hours late."""

    alarms_to: Annotated[str, FORMATS["topic-arn"]] | None = None
    """ARN of the SNS topic for CloudWatch's alarms on quotas and on ECS and, with `add_ons.observability`, Prometheus'
    alerts on EKS, when they start and when they end, and for Capacity Blocks that end, of which events.amazonaws.com
    tells: the topic's policy must let it publish, on no condition, as it tells SNS no source. If your own key encrypts
    it, the key's policy must let it and cloudwatch.amazonaws.com use kms:Decrypt and kms:GenerateDataKey*, and the
    former on no condition of a source either."""

    permissions_boundary: Annotated[str, FORMATS["policy-arn"]] | None = None
    """ARN of the IAM policy that every role of the fleet and of its deployments has as its permissions boundary. It
    must allow what the roles' own policies do. On roles that exist, setting it takes
    iam:PutRolePermissionsBoundary."""

    state: Annotated[str, FORMATS["state"]] = "local"
    """Where Terraform keeps its state: `local`, or `s3://BUCKET/PREFIX` with a lock file beside it."""

    network: Network = NewNetwork()
    """A new VPC, or an existing one by its id."""

    storage: Storage = Storage()
    """Buckets and registries."""

    logs: Logs = Logs()
    """What containers write: how long it is kept, and on EKS where to."""

    image_cache: ImageCache | None = None
    """Pull images of public registries through ECR: `{}`, or the secrets of registries that need a login. Without it
    nodes pull from the registries; Docker Hub allows 100 pulls in six hours for each NAT gateway."""

    eks: Eks = Eks()
    """The EKS cluster."""

    ecs: Ecs = Ecs()
    """The ECS cluster."""

    add_ons: AddOns = AddOns()
    """Optional parts, each off or on by one line."""

    pools: Annotated[dict[Name, Pool], Field(min_length=1)]
    """Pools of instances, by the name that blueprints use."""

    tags: Annotated[dict[TagKey, TagValue], Field(max_length=40)] = Field(default_factory=dict)
    """Tags on all resources. A change replaces the instances of node groups and of ECS, some at a time."""

    distinct = ("zones",)

    @property
    def orchestrators(self) -> tuple[Orchestrator, ...]:
        """What places the containers, each once."""
        return ("eks", "ecs") if self.orchestrator == "both" else (self.orchestrator,)

    @property
    def creates_eks(self) -> bool:
        """Whether the stack `eks` makes the cluster of EKS, and the nodes of pools there."""
        return "eks" in self.orchestrators and self.eks.cluster is None

    def get_orchestrator(self, pool: Pool) -> Orchestrator:
        return pool.orchestrator or self.orchestrators[0]

    def starts_instances(self, pool: Pool) -> bool:
        """Return whether the fleet starts the pool's instances; those of an existing cluster are there."""
        return self.creates_eks or self.get_orchestrator(pool) != "eks"

    def get_zones(self, pool: Pool) -> tuple[str, ...]:
        return pool.zones or self.zones

    def _check_tags(self) -> Iterator[Conflict]:
        """Yield keys that IAM refuses. Source: IAM user guide, "Rules for tagging in IAM and AWS STS", 2026-11."""
        keys = {"fleet", "stack"}
        for key in self.tags:
            if key.lower() in keys:
                reason = "a role has each key once, in whichever case, and the stacks set the keys fleet and stack"
                yield Conflict(("tags", key), reason, "use another key")
            keys.add(key.lower())

    def _check_system_pool(self) -> Iterator[Conflict]:
        for name, pool in self.pools.items():
            if name == SYSTEM_POOL and self.creates_eks and self.get_orchestrator(pool) == "eks":
                reason = "the cluster's own nodes have this name, and its controllers would run on the pool's nodes too"
                yield Conflict(("pools", name), reason, "use another name")

    def _check_existing_cluster(self) -> Iterator[Conflict]:
        if self.eks.cluster and not isinstance(self.network, ExistingNetwork):
            fix = "set network: {vpc: vpc-..., private_subnets: [subnet-...]}, one subnet for each of `zones`"
            yield Conflict(("eks", "cluster"), "it is in a VPC, and `network` does not name that", fix)

    def _check_logs(self) -> Iterator[Conflict]:
        target = self.logs.to
        if target and "eks" not in self.orchestrators:
            reason = "tasks on ECS write to CloudWatch without a collector"
            yield Conflict(("logs", "to"), reason, "remove to", target)
        elif target and not self.creates_eks:
            reason = f"the collector is an add-on of the cluster, and {self.eks.cluster} exists"
            yield Conflict(("logs", "to"), reason, "remove to, and have a collector of the cluster's own", target)
        elif target == "s3" and not self.account:
            reason = "the bucket is named after the account, which `account` does not say"
            yield Conflict(("logs", "to"), reason, 'set account: "123456789012", your own', target)
        elif self.logs.domain and f".{self.region}." not in str(target):
            yield Conflict(
                ("logs", "to"), f"the fleet is in {self.region}", "use a domain of the fleet's region", target
            )

    def _check_own_buckets(self) -> Iterator[Conflict]:
        """Yield buckets of the fleet itself that engines could write to."""
        for index, row in enumerate(self.storage.tier_buckets):
            if re.fullmatch(rf"{re.escape(self.name)}-[a-z]+-[0-9]{{12}}-{re.escape(self.region)}", str(row.bucket)):
                reason = "it is the fleet's own, and engines could change what others read there"
                yield Conflict(("storage", "tier_buckets", index, "bucket"), reason, "use another bucket", row.bucket)

    def _check_region(self) -> Iterator[Conflict]:
        if self.region.startswith(_ISOLATED_REGIONS):
            reason = "the region is isolated, and engines come from public registries"
            yield Conflict(("region",), reason, f"use a region such as {', '.join(_EXAMPLE_REGIONS)}")
        elif self.region not in REGISTRY_ACCOUNTS and "eks" in self.orchestrators:
            reason = "the registry of EKS's own images is not known there"
            yield Conflict(
                ("region",), reason, f"use a region such as {', '.join(_EXAMPLE_REGIONS)}, or orchestrator: ecs"
            )

    def _check_zones(self) -> Iterator[Conflict]:
        if any(self._check_region()):  # which says it already
            return
        for index, zone in enumerate(self.zones):
            if zone[:-1] != self.region:
                reason = f"the zone is outside the fleet's region, {self.region}"
                yield Conflict(("zones", index), reason, f"name a zone of {self.region}, such as {self.region}a")

    def _check_pool_zones(self) -> Iterator[Conflict]:
        for name, pool in self.pools.items():
            for index, zone in enumerate(pool.zones):
                if zone not in self.zones:
                    reason = f"the fleet has only the zones {', '.join(self.zones)}"
                    fix = "use one of the fleet's zones, or add this zone to the fleet"
                    yield Conflict(("pools", name, "zones", index), reason, fix)

    def _check_single_zone_pools(self) -> Iterator[Conflict]:
        for name, pool in self.pools.items():
            count, first = len(self.get_zones(pool)), self.get_zones(pool)[0]
            key_path = ("pools", name, "zones") if pool.zones else ("pools", name, "efa" if pool.efa else "buy")
            verb = "names" if pool.zones else "takes the fleet's"
            if count > 1 and pool.efa:
                reason = f"EFA traffic does not cross an Availability Zone, and the pool {verb} {count}"
                yield Conflict(key_path, reason, f"set zones: {first} in the pool, or efa: false")
            elif count > 1 and pool.reserved:
                reason = f"a reservation holds instances of one Availability Zone, and the pool {verb} {count}"
                yield Conflict(key_path, reason, f"set zones: {first} in the pool, or the reservation's own zone")

    def _check_subnet_count(self) -> Iterator[Conflict]:
        if isinstance(self.network, ExistingNetwork) and len(self.network.private_subnets) != len(self.zones):
            actual, expected = len(self.network.private_subnets), len(self.zones)
            yield Conflict(
                ("network", "private_subnets"),
                f"it names {actual} private subnet{'s' * (actual != 1)}, "
                f"and the fleet has {expected} zone{'s' * (expected != 1)}",
                "name one private subnet a zone, in the order of `zones`",
            )

    def _check_budget(self) -> Iterator[Conflict]:
        if self.budget_to and self.region.startswith("us-gov-"):
            # Source: AWS GovCloud (US) user guide, "AWS GovCloud (US) Billing and Payment", 2026-11.
            reason = "GovCloud has no AWS Budgets: its costs are those of the standard account behind it"
            yield Conflict(("budget_to",), reason, "remove budget_to, and make a budget in the standard account")
        elif self.budget_to and not self.spend_limit:
            yield Conflict(
                ("budget_to",), "a budget is the spend limit's month, and there is none", "set spend_limit too"
            )

    def _check_alarm_topic(self) -> Iterator[Conflict]:
        if self.alarms_to and parse_arn_region(self.alarms_to) != self.region:
            reason = f"an alarm can only notify topics in its own region, {self.region}"
            yield Conflict(("alarms_to",), reason, f"use a topic in {self.region}")

    def _check_boundary(self) -> Iterator[Conflict]:
        owner = parse_arn_account(self.permissions_boundary) if self.permissions_boundary else "aws"
        if self.account and owner not in (self.account, "aws"):
            reason = f"a role takes a boundary of its own account, {self.account}, or one of AWS's own policies"
            yield Conflict(("permissions_boundary",), reason, f"use a policy of {self.account}")

    @property
    def is_closed(self) -> bool:
        """Whether the fleet's own network has no way to the internet."""
        return isinstance(self.network, NewNetwork) and not self.network.nat

    def _check_closed_network(self) -> Iterator[Conflict]:
        if self.is_closed and not (self.image_cache and self.image_cache.docker_hub):
            reason = (
                "without NAT gateways no node reaches Docker Hub, where vLLM's image is, or another public registry"
            )
            fix = "set nat: on, or image_cache: {docker_hub: ARN of a secret with a login}"
            yield Conflict(("network", "nat"), reason, fix)
        elif self.is_closed and self.image_cache and self.add_ons.operators and not self.image_cache.ghcr:
            reason = "KEDA's images are in GitHub's registry, which no node reaches without NAT gateways"
            yield Conflict(("add_ons", "operators"), reason, "set operators: off, or image_cache.ghcr")

    def _check_image_cache(self) -> Iterator[Conflict]:
        if self.image_cache is None:
            return
        if len(self.name) > MAX_CACHED_FLEET_NAME:
            reason = f"the image cache's prefixes contain it, and leave {MAX_CACHED_FLEET_NAME} of 30 characters"
            yield Conflict(
                ("name",), reason, f"use a name of up to {MAX_CACHED_FLEET_NAME} characters, or remove image_cache"
            )
        if "--" in self.name:  # source: terraform-provider-aws 5.100, ecr_repository_prefix
            reason = "the image cache's prefixes contain it, and Terraform's provider refuses two hyphens in a row"
            yield Conflict(("name",), reason, "use another name, or remove image_cache")
        if self.region.startswith(_REGIONS_WITHOUT_CACHE):
            yield Conflict(("image_cache",), f"ECR has no pull-through cache in {self.region}", "remove image_cache")
        for field in ("docker_hub", "ghcr"):
            arn = getattr(self.image_cache, field)
            if arn and parse_arn_region(arn) != self.region:
                reason = f"ECR reads secrets of its own region, {self.region}"
                yield Conflict(("image_cache", field), reason, f"use a secret in {self.region}")

    def _check_orchestrator_settings(self) -> Iterator[Conflict]:
        for name, current, default in (("eks", self.eks, Eks()), ("ecs", self.ecs, Ecs())):
            if name not in self.orchestrators and current != default:
                reason = f"the fleet has no {name.upper()} cluster; its orchestrator is {self.orchestrator}"
                yield Conflict((name,), reason, f"set orchestrator: both, or remove {name}")

    def _check_add_ons(self) -> Iterator[Conflict]:
        for name in EKS_ADD_ONS:
            if getattr(self.add_ons, name) and "eks" not in self.orchestrators:
                reason = "it installs Kubernetes controllers, and the fleet's orchestrator is ecs"
                yield Conflict(("add_ons", name), reason, f"set {name}: off")

    def _check_pool_orchestrators(self) -> Iterator[Conflict]:
        for name, pool in self.pools.items():
            if pool.orchestrator and pool.orchestrator not in self.orchestrators:
                reason = f"the fleet's orchestrator is {self.orchestrator}"
                yield Conflict(
                    ("pools", name, "orchestrator"),
                    reason,
                    "use the fleet's orchestrator, or set orchestrator: both for the fleet",
                )

    def _check_pool_fields(self) -> Iterator[Conflict]:
        for name, pool in self.pools.items():
            unsupported = (
                _find_eks_only_fields(pool) if self.get_orchestrator(pool) == "ecs" else _find_ecs_only_fields(pool)
            )
            for field, reason, fix in unsupported:
                yield Conflict(("pools", name, field), reason, fix)


def _find_eks_only_fields(pool: Pool) -> Iterator[tuple[str, str, str]]:
    """Yield the fields of a pool on ECS that only EKS knows: the field, why, and what to write."""
    if pool.by:
        yield "by", "on ECS, Auto Scaling groups start the instances", "remove `by` from pools on ECS"
    if pool.os != "al2023":
        yield "os", "AWS's ECS AMI with GPU drivers is Amazon Linux 2023 only", "set os: al2023"
    if pool.taints:
        yield "taints", "ECS has no taints", "use labels, which placement constraints of tasks can select"
    if pool.images == "soci":
        reason = "on ECS, SOCI works on Fargate only, which has no GPUs (aws/containers-roadmap#1832)"
        yield "images", reason, "set images: cached, or {snapshot: snap-...} with the images pulled beforehand"


def _find_ecs_only_fields(pool: Pool) -> Iterator[tuple[str, str, str]]:
    """Yield the fields of a pool on EKS that only ECS knows."""
    if pool.efa_layout == "ip-bandwidth":
        # Source: amazon-vpc-cni-k8s v1.23.0, README.md, ENABLE_MULTI_NIC.
        reason = "on EKS, pods have an address on the first network card only; the others would carry no IP traffic"
        yield "efa_layout", reason, "set efa_layout: save-addresses"
    if pool.warm:
        yield "warm", "warm pools are supported on ECS only", "set warm: 0"
