"""Where a deployment runs: the facts and the conventions of its target, and the processes it runs there. Frozen data.

A target provides its `Conventions` as data, so that no kind and no engine asks which target it resolves for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from llm_serving.services.service import LOOPBACK, Service
from llm_serving.settings.plain import PlainData

Discovery = Literal["addresses", "labels", "names"]
"""How a router finds engines: by fixed addresses, by the labels of their pods, or by DNS names."""


class MeasuredPrefix(PlainData):
    """What `validate` measured of a blueprint's traffic."""

    shared_prefix: float
    """Share of a prompt that earlier prompts began with, 0 to 1."""

    measured_at: str
    """When, UTC, ISO 8601."""


class MeasuredCapacity(PlainData):
    """The load that a deployment carried within its SLO, as `sweep` found it."""

    key: str
    """Digest of what decides it, replicas left out; a deployment with the same carries as much a replica."""

    axis: Literal["rate", "users"] = "rate"
    """What grew. Users wait for their answers: a deployment answers more of their requests than it does of arrivals."""

    requests_per_s: float
    """Requests a second of the whole deployment: offered by arrivals, or answered to users."""

    replicas: dict[str, int]
    """Replicas of each engine role while it was measured."""

    measured_at: str
    """When, UTC, ISO 8601."""

    source: str
    """The sweep's file."""


class Conventions(PlainData):
    """What a target does in its own way; each field is a fact that a kind or an engine resolves by."""

    title: str
    """The target's name in a sentence: `this machine`, `EKS`."""

    orchestrator: str = ""
    """The pool's orchestrator that the target needs; empty where it needs none."""

    is_local: bool = False
    """All processes share this machine: its cores without accelerators, its memory, its loopback address, so ports are
    chosen (`ports`). Nothing scales or drains there. If not, replicas are containers with an address each."""

    is_kubernetes: bool = False
    """Replicas are pods: found by labels, in groups that start together and number their nodes, with claims to mount,
    and behind Services, of other deployments too."""

    runs_tasks: bool = False
    """Replicas are ECS tasks: without accelerators on Fargate, which has no nodes; else each takes its own network
    interface on the node's first network card."""

    max_replicas: int = 0
    """Most replicas of a role that clients and routers can find; 0 where there is no such limit."""

    max_waiting: int = 0
    """Most replicas, all roles together, that may wait for nodes of their pools' first choice so that others start in
    the next; 0 where nothing limits them."""

    url: str
    """Base URL for clients, with {deployment}, {namespace} and {port}."""

    engines_url: str = ""
    """Base URL of the engines, with {deployment}, {namespace} and {port}: a name with an address for each; empty where
    they have no such name."""

    @property
    def bind_host(self) -> str:
        """The address that processes listen on."""
        return LOOPBACK if self.is_local else "0.0.0.0"


def format_peer_name(deployment: str, service: str, namespace: str) -> str:
    """Return the DNS name by which the processes of a deployment find one another."""
    return f"{deployment}-{service}.{namespace}"


class Environment(PlainData):
    """Facts of a target, for one deployment, that no settings file holds."""

    target: str
    conventions: Conventions
    region: str
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

    hidden_host: str = LOOPBACK
    """The loopback address of what only processes of its own machine may reach, such as a router's administration."""

    dependents: tuple[str, ...] = ()
    """Deployments that are being resolved: each depends on the next, and the last on what is resolved now."""

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

    @property
    def member_host(self) -> str:
        """The address that engines and metrics pages listen on: what a deployment's own processes call."""
        return self.hidden_host if self.conventions.is_local else self.conventions.bind_host
