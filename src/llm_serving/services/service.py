"""What a target runs, whatever the kind: services of like replicas. Frozen data, every number decided.

A kind resolves its blueprint into services once; templates lay their fields out, and stacks read them back.
"""

from __future__ import annotations

import json
import math
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from llm_serving.catalog.instances import DEVICES
from llm_serving.settings.plain import PlainData

LOOPBACK = "127.0.0.1"
"""The address that no other machine reaches."""

MAX_VARIABLE = 128 * 1024 - 1
"""Maximum bytes of a program's variable with its name. Source: Linux, include/uapi/linux/binfmts.h, MAX_ARG_STRLEN."""

PRE_STOP_S = 10
"""Seconds in which Kubernetes takes a pod from its Services before the pod is asked to stop."""

STOP_DELAY_VARIABLE = "FRONT_STOP_DELAY_S"
"""Tells the nginx of images/router how long to go on after the signal to stop.

ECS sends the signal as it takes the task's address from the DNS, where clients know it for its time to live, which
`infra.constructs.task_network` sets; issues 343 and 1639 of aws/containers-roadmap, read 2026-11.
"""

ECS_STOP_DELAY_S = 45
"""That time to live, some seconds for the DNS to learn of it, and the 30 for which Java, a stream's job too, keeps an
address whatever its time to live: OpenJDK 17, sun.net.InetAddressCachePolicy.DEFAULT_POSITIVE."""

START_WAIT_VARIABLE = "FRONT_START_WAIT_S"
"""Tells the nginx of images/router how long it waits for the router to know an engine before it lets clients in.

A load balancer sends a new target requests after one health check, and the most to whoever fails them at once: ELB
documentation, "Health checks for Application Load Balancer target groups", 2026-11.
"""

START_WAIT_S = 30
"""Longer than finding engines takes, and shorter than the time in which no platform expects a router's health."""

LOCAL_STOP_S = 20
"""Seconds that a process on this machine has to stop."""

Signal = Literal["queue", "kv-usage"]
"""What scaling follows: requests that wait, or the used share of a KV cache; each for one replica."""


class Probe(PlainData):
    """How to know that a process answers: a real request, never a health page alone."""

    path: str
    body: dict[str, Any]
    """A stack's rendered file has it as JSON: settings have no line breaks, and a system prompt does."""

    health: str = ""
    """Path that tells whether the process is alive, however many requests wait; empty where it has none."""

    alive: str = ""
    """Path that answers while the process runs, although it serves nothing; empty where it is `health`."""

    deadline_s: float
    """Longest start, in seconds: a process that has not answered by then has failed."""

    period_s: int = 10
    """Seconds between two attempts during the start."""

    _parse = field_validator("body", mode="before")(lambda body: json.loads(body) if isinstance(body, str) else body)

    @property
    def attempts(self) -> int:
        """Failed attempts after which the start has failed."""
        return math.ceil(self.deadline_s / self.period_s)


class Secret(PlainData):
    """A secret of AWS Secrets Manager that a service may read; its environment says what for."""

    secret: str
    """Name or ARN."""

    key: str = ""
    """ARN of the KMS key that encrypts it; empty for the one that AWS manages."""


class Peak(PlainData):
    """A time of each day for which replicas start beforehand, in minutes of the day."""

    start: int
    end: int
    """The next day's where it is the earlier."""

    replicas: int
    """The least in that time."""

    time_zone: str = "UTC"


class Scale(PlainData):
    """When replicas come and go between the bounds."""

    signal: Signal
    target: float
    """For one replica: requests, or a share of 0 to 1."""

    cool_down_s: int
    """Seconds before a replica that is no longer needed stops."""

    slo: bool = False
    """Whether replicas are added too while more requests miss the SLO's latencies than it allows."""

    peaks: tuple[Peak, ...] = ()


class Replicas(PlainData):
    """How many replicas run: always `min`, or what `scale` asks for between the bounds."""

    min: int = 1
    """0 where it scales to zero without requests."""

    max: int = 1
    scale: Scale | None = None
    """None where they are always as many."""

    unavailable: int = 1
    """Replicas that a drain may stop at once, and a rollout without `surge`."""

    surge: int = 0
    """Replicas that a rollout starts before it stops as many."""


class Resources(PlainData):
    """What one node gives to one replica."""

    device: str = ""
    """Kubernetes' name of the accelerator; empty where none is needed."""

    accelerators: int = 0
    """As nodes allocate them: whole Neuron devices, of several NeuronCores each."""

    efa: int = 0
    """EFA interfaces that the replica uses."""

    cpus: int = 1
    memory_bytes: int = 0
    shared_memory_bytes: int = 0
    """Of /dev/shm, through which the processes of one node exchange tensors."""

    huge_page_bytes: int = 0
    """In pages of 2 MiB, for EFA's buffers."""

    device_files: tuple[str, ...] = ()
    """Devices of the node that the container sees where nobody hands them out, as on ECS."""

    @property
    def gpus(self) -> int:
        """NVIDIA GPUs among the accelerators."""
        return self.accelerators if self.device == DEVICES["gpu"] else 0


class Toleration(PlainData):
    """A taint of nodes that a service's pods tolerate, in Kubernetes' words."""

    key: str
    value: str
    effect: str


class Placement(PlainData):
    """The nodes that may run a service."""

    pool: str = ""
    """The fleet's pool; empty for nodes of nobody: Fargate, or any node without taints."""

    instance_types: tuple[str, ...] = ()
    """Types that hold a replica, all alike in what they give; any of the pool where empty."""

    zones: tuple[str, ...] = ()
    labels: dict[str, str] = Field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    is_dense: bool = False
    """Whether all replicas must be in one zone, next to one another: their interfaces reach no further."""

    gives_way: bool = False
    """Whether services without this may take its nodes."""

    spot: bool = False
    """Whether it runs on spot capacity first, where it has no pool."""

    queue: str = ""
    """Kueue's LocalQueue that admits its pods; empty where they wait in none."""


class ReplicaNode(PlainData):
    """The place of a service in a replica that spans several nodes, where each node is a service by itself."""

    replica: int
    rank: int
    is_alone: bool = False
    """Whether it is the whole replica, which is a service by itself to have a name of its own."""

    @property
    def group(self) -> int | None:
        """The replica whose nodes are next to one another; None where it has one."""
        return None if self.is_alone else self.replica


class Prefetch(PlainData):
    """Files of S3 that are copied to the node before the service starts."""

    image: str
    """Image with the AWS CLI."""

    uris: dict[str, str]
    """s3://BUCKET/PREFIX by the name of its folder in /scratch/fetched."""

    timeout_s: int
    """Longest that one of them may take, seconds."""

    disk_bytes: int
    """Of the node's disk: for all of them, and for the service's caches."""

    skip: tuple[str, ...] = ()
    """Files that are not copied, as `aws s3 sync --exclude` names them."""


class Mount(PlainData):
    """A folder that outlives the service's containers."""

    path: str
    """In the container."""

    node_path: str = ""
    """Folder of the node; empty with a claim."""

    claim: str = ""
    """PersistentVolumeClaim; empty on a node."""

    key: str = ""
    """Folder below the claim."""


class Call(PlainData):
    """What a service connects to beside AWS, and may where everything else is closed."""

    purpose: str
    """What for, in words."""

    port: int
    deployment: str = ""
    """The deployment of the fleet that answers; empty for anything else."""

    labels: dict[str, str] = Field(default_factory=dict)
    """Labels of those of the deployment's pods that answer; all of them where empty."""

    in_network: bool = True
    """Whether it is in the fleet's network."""

    ranges: tuple[str, ...] = ()
    """Ranges of addresses that answer in the network, where no deployment does; empty for any address."""


class Stop(PlainData):
    """How a replica stops."""

    stop_s: int = LOCAL_STOP_S
    """Seconds from the stop signal until it is killed."""

    pre_stop_s: int = 0
    """Seconds before the signal, in which those that call it learn that it goes."""


class Service(PlainData):
    """Like replicas of one program."""

    name: str
    """Unique in the deployment."""

    role: str
    """What it does in the deployment: worker, prefill, router, batch-api."""

    is_entry: bool = False
    """Whether clients call it: it starts after the others, and stops before them."""

    image: str = ""
    """Empty where the target runs no containers."""

    command: tuple[str, ...]
    worker_command: tuple[str, ...] = ()
    """Command of every further node of a replica, where the target starts them together; empty for one node."""

    env: dict[str, str] = Field(default_factory=dict)
    """Added to the variables that the target sets."""

    caches: tuple[str, ...] = ()
    """Names of its caches on this machine, where several programs of it have their own; empty for that of its name."""

    address_variables: tuple[str, ...] = ()
    """Variables that must hold the replica's own address, where only the target knows it."""

    secrets: tuple[Secret, ...] = ()
    calls: dict[str, Call] = Field(default_factory=dict)
    """What it connects to beside AWS and the deployment's own services, by a name."""

    node_check: tuple[str, ...] = ()
    """Arguments of charts/inference/files/node.py, which refuses a node that lacks what the service needs; empty where
    it needs nothing that may be missing."""

    host: str = LOOPBACK
    """Address at which processes of its own machine reach it."""

    clients: tuple[str, ...] = ()
    """Who reaches the entry on AWS: ranges of addresses, security groups on ECS, namespaces on EKS. Empty: the VPC, or
    the namespace's pods."""

    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Port that answers requests; 0 for none."""

    ports: dict[str, int] = Field(default_factory=dict)
    """Further ports by name, where each replica has its own address."""

    metrics: dict[str, str] = Field(default_factory=dict)
    """Prometheus names of its metrics, by signal."""

    metrics_path: str = ""
    """Path of its metrics on the port `metrics`, or on `port`; empty where it has none."""

    probe: Probe | None = None
    """None where another check proves it, or another node of the replica answers."""

    ready_file: str = ""
    """File of its container that is there once it works, where no request proves that; empty otherwise."""

    replicas: Replicas = Replicas()
    nodes: int = 1
    """Of one replica: more than one start together, in one zone."""

    node: ReplicaNode | None = None
    """Its node of a replica, where each node is a service by itself."""

    resources: Resources = Resources()
    placement: Placement = Placement()
    stop: Stop = Stop()
    prefetch: Prefetch | None = None
    mounts: dict[str, Mount] = Field(default_factory=dict)
    is_root: bool = False
    """Whether it runs as root: to pin memory for devices, or to write to the node's disk."""

    is_stateful: bool = False
    """Its data is lost when it ends, so the supervisor must not restart it."""

    start_s: int = 60
    """A process that ends sooner has not started."""

    start_retries: int = 3
    """Further attempts at a start that failed, ever later."""

    @property
    def answers_after_s(self) -> int:
        """The longest from its node's start to its first answer, in seconds, with what is copied before."""
        copy_s = self.prefetch.timeout_s if self.prefetch else 0
        return copy_s + (math.ceil(self.probe.deadline_s) if self.probe else 0)
