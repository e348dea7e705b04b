"""The diary's local server: a page server of Python, which is installed by writing its script."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from llm_serving.services.local_server import LocalServer
from llm_serving.services.service import Service, Stop

SCRIPT = Path(__file__).with_name("shelf_server.py")


class Shelf(LocalServer):
    """Serves the files of its folder."""

    NAME = "shelf"

    def is_installed(self) -> bool:
        return SCRIPT.is_file()

    def install(self, on_progress: Callable[[str], None]) -> None:
        on_progress("writing its script")
        SCRIPT.write_text(
            "import functools, http.server, sys\n"
            "handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=sys.argv[2])\n"
            "http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), handler).serve_forever()\n"
        )

    def build_service(self, port: int, folder: Path) -> Service:
        command = (sys.executable, str(SCRIPT), str(port), str(folder))
        return Service(name=self.NAME, role=self.NAME, command=command, port=port, stop=Stop(stop_s=5))
