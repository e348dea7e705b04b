"""The program that sends the load of a deployment which answers no requests: in a container inside its network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class MountedSecret:
    """A key of a Kubernetes Secret, which a container has as a file."""

    secret: str
    key: str


@dataclass(frozen=True)
class LoadProgram:
    """The program and what its container has. `validation.remote.program` says what it is told, and what it leaves."""

    image: str
    """With `java` and, where there is an `archive`, with `curl`."""

    command: tuple[str, ...]
    """What the name of a file with the URL of its input follows."""

    archive: str = ""
    """s3://BUCKET/KEY that is copied to ARCHIVE_FILE before the command; empty for a program of the image."""

    secrets: Mapping[str, MountedSecret] = field(default_factory=dict)
    """By path of the file; on EKS."""

    role: str = ""
    """Part of the purpose of the role that it acts as; on ECS."""

    security_groups: tuple[str, ...] = ()
    """Names of those that it is in, beside that of load drivers; on ECS."""


ARCHIVE_FILE = "/tmp/load-program"
