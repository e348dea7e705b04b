"""The benchmark of urgent requests: its table, and that requests carry their priority."""

from __future__ import annotations

import http.server
import json
import threading

from rich.console import Console

from scripts.benchmarks import priority
from tests.http_handler import QuietHandler


def test_the_table_has_both_percentiles_and_how_much_longer_requests_take_without() -> None:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(priority.render({-1: [1.0] * 40, 0: [3.0] * 40}))
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in capture.get().splitlines() if "│" in line]
    assert rows == [
        ["priority: -1", "40", "1.00", "1.00"],
        ["no priority", "40", "3.00", "3.00"],
        ["ratio", "", "3.0", "3.0"],
    ]


def test_urgent_requests_are_sent_one_by_one_beside_the_users_that_have_no_priority() -> None:
    bodies: list[dict[str, int]] = []

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.respond(200)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        seconds = priority.measure_urgent(server.server_port, -1)
        server.shutdown()
    urgent = [body for body in bodies if body["priority"] == -1]
    assert len(seconds) == len(urgent) == priority.URGENT_REQUESTS
    assert {body["max_tokens"] for body in urgent} == {priority.URGENT_TOKENS}
    assert {body["max_tokens"] for body in bodies if body["priority"] == 0} == {priority.ANSWER_TOKENS}
