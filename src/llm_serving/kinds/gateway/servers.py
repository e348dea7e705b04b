"""The server that a gateway needs on this machine: Postgres, in place of RDS."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from llm_serving.kinds.gateway import database, postgres_program
from llm_serving.kinds.gateway.deployment import DATABASE
from llm_serving.kinds.gateway.litellm_env import LiteLlmEnv
from llm_serving.services.local_server import LocalServer
from llm_serving.services.service import Resources, Service
from llm_serving.settings.errors import Unavailable


class Postgres(LocalServer):
    """Holds keys, teams and what they used. It is installed together with LiteLLM, whose database it is."""

    NAME = DATABASE
    START_S = 120.0

    def is_installed(self) -> bool:
        return not database.find_missing() and LiteLlmEnv().is_ready()

    def install(self, on_progress: Callable[[str], None]) -> None:
        missing = database.find_missing()
        if missing:
            raise Unavailable(f"{missing}: not found on this machine; a gateway needs it. Fix: {database.INSTALL}.")
        LiteLlmEnv().ensure(on_progress)

    def build_service(self, port: int, folder: Path) -> Service:
        return Service(
            name=DATABASE,
            role=DATABASE,
            command=(sys.executable, postgres_program.__file__, str(port), str(folder)),
            port=port,
            start_s=1,
            resources=Resources(memory_bytes=200_000_000),
        )
