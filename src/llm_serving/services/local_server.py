"""Servers that a kind's processes need on this machine, such as a cache or a broker that AWS runs elsewhere."""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from llm_serving.services.service import LOOPBACK, Service


class LocalServer(ABC):
    """One server, which starts before the deployment's services and stops after them.

    Its port is `environment.ports[NAME]`. The supervisor that runs the services runs it too, and ends it by a signal.
    """

    NAME: ClassVar[str]
    """Name of its process and of its port."""

    START_S: ClassVar[float] = 60.0
    """Longest start, in seconds."""

    @abstractmethod
    def is_installed(self) -> bool:
        """Return whether its programs are on this machine, complete and of the pinned version."""

    @abstractmethod
    def install(self, on_progress: Callable[[str], None]) -> None:
        """Install its programs.

        Raises:
            Unavailable: they cannot be had.
        """

    @abstractmethod
    def build_service(self, port: int, folder: Path) -> Service:
        """Return the service that listens on `port` of the loopback interface and keeps its data in `folder`."""

    def is_ready(self, port: int) -> bool:
        """Return whether it answers; by default, whether it accepts a connection."""
        with socket.socket() as connection:
            connection.settimeout(1)
            return connection.connect_ex((LOOPBACK, port)) == 0
