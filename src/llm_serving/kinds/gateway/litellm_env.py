"""LiteLLM's own environment: its proxy as requirements/gateway.txt locks it, with the Prisma client of its database.

It is separate from the command line's, and set up only where a gateway is deployed. Prisma's client is Python, and
calls Prisma's query engine, a native program that Prisma downloads from its own host.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from llm_serving import console, locked_env, paths
from llm_serving.kinds.gateway import prisma_types
from llm_serving.settings.errors import Unavailable

FOLDER = paths.ROOT / ".venv-gateway"
LOCK = paths.ROOT / "requirements" / "gateway.txt"
PRISMA = paths.ROOT / "requirements" / "gateway-prisma"
"""npm's lock of Prisma's generator."""

ENGINE_VARIABLE = "PRISMA_QUERY_ENGINE_BINARY"
"""Prisma's own: the path of its query engine, where it must not be downloaded."""

_NODE_PINS = ("package.json", "package-lock.json")


def find_program(name: str) -> Path:
    return FOLDER / "bin" / name


class LiteLlmEnv(locked_env.LockedEnv):
    """LiteLLM with the client of its database."""

    name = "LiteLLM's environment"

    def __init__(self, folder: Path = FOLDER, lock: Path = LOCK) -> None:
        super().__init__(folder, [lock])

    def _build(self, on_progress: Callable[[str], None]) -> None:
        for name in ("node", "npm"):
            if not shutil.which(name):
                raise Unavailable(
                    f"{name}: not found on PATH; Prisma's generator needs it. Fix: install Node.js 20 or later."
                )
        super()._build(on_progress)

    def _complete(self, on_progress: Callable[[str], None]) -> None:
        for name in _NODE_PINS:
            shutil.copy(PRISMA / name, self.folder)
        console.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], log=self.log, cwd=self.folder)
        on_progress("writing the database's client")
        try:
            self._generate_client()
        except console.CommandFailed as error:
            raise Unavailable(
                f"LiteLLM's database client could not be generated: {error}\nFix: let this machine reach "
                f"https://binaries.prisma.sh, or set {ENGINE_VARIABLE} to the query engine of Prisma 5.17.0."
            ) from None
        (client,) = self.folder.glob("lib/python3*/site-packages/prisma")
        prisma_types.leave_out(client)

    def _generate_client(self) -> None:
        """Generate Prisma's Python client of LiteLLM's schema, for this machine only."""
        (packaged,) = self.folder.glob("lib/python3*/site-packages/litellm/proxy/schema.prisma")
        lines = packaged.read_text(encoding="utf-8").splitlines(keepends=True)
        schema = self.folder / "schema.prisma"
        schema.write_text("".join(line for line in lines if "binaryTargets" not in line), encoding="utf-8")
        generator = self.folder / "node_modules" / "prisma" / "build" / "index.js"
        console.run(
            ["node", str(generator), "generate", f"--schema={schema}"],
            log=self.log,
            environment={
                "PATH": f"{self.executables}{os.pathsep}{os.environ['PATH']}",
                "PRISMA_CLI_QUERY_ENGINE_TYPE": "binary",  # as prisma/cli/prisma.py of 0.15.0 does
                "CHECKPOINT_DISABLE": "1",
            },
        )

    def _compute_stamp(self) -> str:
        files = (*self.locks, *(PRISMA / name for name in _NODE_PINS), Path(prisma_types.__file__))
        digest = locked_env.compute_digest(files)
        return f"{self.folder} {os.environ.get(ENGINE_VARIABLE, '')} {digest}\n"  # the engine's path is in the client
