"""Where a deployment runs: the facts and the conventions of its target, and the processes it runs there. Frozen data.

A target provides its `Conventions` as data, so that no kind and no engine asks which target it resolves for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from llm_serving.services.service import ResolvedData, Service

LOOPBACK = "127.0.0.1"
"""The address that no other machine reaches."""

Discovery = Literal["addresses", "labels", "names"]
"""How a router finds engines: by fixed addresses, by the labels of their pods, or by DNS names."""


class MeasuredPrefix(ResolvedData):
    """What `validate` measured of a blueprint's traffic."""

    shared_prefix: float
    """Share of a prompt that earlier prompts began with, 0 to 1."""

    measured_at: str
    """When, UTC, ISO 8601."""


class MeasuredCapacity(ResolvedData):
    """The load that a deployment carried within its SLO, as `sweep` found it."""

    key: str
    """Digest of what decides it, replicas left out; a deployment with the same carries as much a replica."""

    requests_per_s: float
    """Answered requests a second of the whole deployment."""

    replicas: dict[str, int]
    """Replicas of each engine role while it was measured."""

    measured_at: str
    """When, UTC, ISO 8601."""

    source: str
    """The sweep's file."""


class Conventions(ResolvedData):
    """What a target does in its own way; each field is a fact that a kind or an engine resolves by."""

    title: str
    """The target's name in a sentence: `this machine`, `EKS`."""

    orchestrator: str = ""
    """The pool's orchestrator that the target needs; empty where it needs none."""

    shared_host: bool = False
    """All processes share one machine: its cores, its memory, and its address, so ports are chosen (`ports`)."""

    containers: bool = True
    """Processes run in containers: they need images, read no local folder, and get files of S3 copied beforehand."""

    real_accelerators: bool = True
    """Engines run on the pool's accelerators; if not, they run on the engine's platform `cpu`."""

    scales: bool = True
    """Replicas follow the load between their bounds; if not, the lower bound runs, and at least one."""

    drains: bool = True
    """A replica that is stopped gets time to finish its requests."""

    starts_groups: bool = True
    """The target starts a replica's nodes together and numbers them; if not, each node is an instance by itself."""

    max_replicas: int = 0
    """Most replicas of a role that clients and routers can find; 0 where there is no such limit."""

    max_waiting: int = 0
    """Most replicas, all roles together, that may wait for nodes of their pools' first choice so that others start in
    the next; 0 where nothing limits them."""

    fargate: bool = False
    """Containers without accelerators run on Fargate, which has no nodes."""

    workflows: bool = False
    """Queues and a state machine can stand between processes, as batches need."""

    task_interfaces: bool = False
    """Each container takes its own network interface on the node's first network card."""

    claims: bool = False
    """A container can mount a PersistentVolumeClaim by name."""

    node_disk: str = ""
    """Folder of a node where its NVMe disks are mounted, and which is on the root volume of a node without; empty where
    processes have no node of their own."""

    gateways: bool = False
    """A Service that is not the deployment's can stand between its load balancer and its routers."""

    bind_host: str = "0.0.0.0"
    """The address that processes listen on."""

    own_address: str = ""
    """The address by which processes reach one another, where all share it; empty where each has its own."""

    zmq_bind_host: str = "*"
    """`bind_host` as ZeroMQ reads it in an engine's KV events endpoint."""

    discovery: Discovery = "names"
    """How a router finds the engines."""

    selector_labels: Mapping[str, str] = Field(default_factory=dict)
    """Labels of a role's pods, with {deployment} and {role}, where `discovery` is `labels`."""

    leader_labels: Mapping[str, str] = Field(default_factory=dict)
    """Further labels of the pod that answers requests, where a replica spans several nodes."""

    peer_name: str = "{deployment}-{service}.{namespace}"
    """DNS name by which the processes of a deployment find one another."""

    url: str
    """Base URL for clients, with {deployment}, {namespace} and {port}."""

    engines_url: str = ""
    """Base URL of the engines, with {deployment}, {namespace} and {port}: a name with an address for each; empty where
    they have no such name."""

    rank: str = ""
    """Expression that the target replaces by a node's rank; empty where each node's command holds its number."""

    leader_address: str = ""
    """Expression that the target replaces by the address of rank 0; empty where it is that node's DNS name."""

    kv_transfer: str = ""
    """The engine's transfer between prefill and decode; empty where the accelerators' links decide."""


class Environment(ResolvedData):
    """Facts of a target, for one deployment, that no settings file holds."""

    target: str
    """Name of the target."""

    conventions: Conventions

    region: str
    """AWS region."""

    account: str = ""
    """Number of the AWS account; empty on this machine."""

    bucket: str
    """The model bucket of the storage stack."""

    results_bucket: str = ""
    """The results bucket of the storage stack; empty where `bucket` holds results too."""

    s3_endpoint: str | None = None
    """URL of an S3 other than AWS's own; None means AWS."""

    env: dict[str, str] = Field(default_factory=dict)
    """What every process needs to reach AWS."""

    engine_folder: str = ""
    """Folder of the engine's executables; empty where the image's PATH has them."""

    data_folder: str = ""
    """Folder that processes may write to."""

    socket_folder: str = ""
    """Folder for Unix sockets, with a path short enough for them."""

    launcher: tuple[str, ...] = ()
    """Prefix of every command: ends all that a process started when the process ends."""

    fetcher: tuple[str, ...] = ()
    """Prefix of the command of an engine that reads its weights from a folder: copies each of FOLDER URI ... from S3,
    then becomes the command behind `--`; empty where containers are given what was copied beforehand."""

    image_programs: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    """What runs a program of images/, by its name; empty where the image's PATH has them."""

    router_host: str = LOOPBACK
    """The loopback address that a router listens on, behind its front."""

    module_folder: str = ""
    """Folder of the modules of images/ that an engine loads; empty where its image has them."""

    services: tuple[Service, ...] = ()
    """Emulated AWS services beside the deployment."""

    ports: dict[str, int] = Field(default_factory=dict)
    """Ports by name (`Kind.list_port_names`), where processes share one machine."""

    registry: str = ""
    """Repository prefix of the fleet's own images: ACCOUNT.dkr.ecr.REGION.amazonaws.com/FLEET."""

    image_digests: dict[str, str] = Field(default_factory=dict)
    """Digests of images by REPOSITORY:TAG, from images.lock.yaml beside the fleet file."""

    image_prefixes: dict[str, str] = Field(default_factory=dict)
    """Prefixes of the fleet's image cache, by the host of a public registry."""

    namespace: str = ""
    """Namespace of the deployments on EKS; private DNS namespace of their peers on ECS."""

    service_account: str = ""
    """Kubernetes service account of the engines, which the fleet's stacks bind to a role that may read weights."""

    measured: MeasuredPrefix | None = None
    """What earlier reports measured of the blueprint's traffic as it is now; None where there are none."""

    capacities: tuple[MeasuredCapacity, ...] = ()
    """What sweeps of the deployment measured, the newest first."""

    cores: int = 0
    """Cores of the machine, where processes share one."""

    emulated: tuple[str, ...] = ()
    """Parts that are emulated, a sentence each."""
