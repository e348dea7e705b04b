"""Servers of a stream on this machine: Kafka in KRaft mode, and Redis in place of ElastiCache for Valkey."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from llm_serving.kinds.streaming import kafka_program, programs
from llm_serving.services.local_server import LocalServer
from llm_serving.services.service import LOOPBACK, Resources, Service

KAFKA, CACHE = "kafka", "cache"
"""Names of their processes and ports."""

_KAFKA_MB, _CACHE_MB = 256, 64

_REFUSED = ("CONFIG", "DEBUG", "MODULE", "REPLICAOF", "SLAVEOF")
"""Redis' commands by which other users of this machine, who reach it without a login, would write this user's files."""


class _JavaServer(LocalServer):
    """A server whose program comes from Maven."""

    def is_installed(self) -> bool:
        return programs.is_ready()

    def install(self, on_progress: Callable[[str], None]) -> None:
        programs.install(on_progress)


class Kafka(_JavaServer):
    """One broker, which is its own controller."""

    NAME = KAFKA
    START_S = 120.0

    def build_service(self, port: int, folder: Path) -> Service:
        java = programs.build_java(heap_mb=_KAFKA_MB, server=True)
        return Service(
            name=KAFKA,
            role=KAFKA,
            command=(sys.executable, kafka_program.__file__, str(port), str(folder), *java),
            port=port,
            start_s=1,
            resources=Resources(memory_bytes=500_000_000),
        )


class Cache(_JavaServer):
    """Holds answers in memory."""

    NAME = CACHE

    def build_service(self, port: int, folder: Path) -> Service:
        options = ("--save", "", "--appendonly", "no", "--maxmemory", f"{_CACHE_MB}mb")
        refused = [word for command in _REFUSED for word in ("--rename-command", command, "")]
        place = ("--bind", LOOPBACK, "--port", str(port), "--dir", str(folder.parent))
        return Service(
            name=CACHE,
            role=CACHE,
            command=(str(programs.locate_cache()), *place, *options, "--maxmemory-policy", "allkeys-lru", *refused),
            port=port,
            start_s=1,
            resources=Resources(memory_bytes=100_000_000),
        )
