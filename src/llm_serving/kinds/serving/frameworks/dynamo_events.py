"""Passes on the events of Dynamo's workers, and becomes its frontend: `python dynamo_events.py IN OUT COMMAND...`.

By default each worker publishes its events on all addresses of the machine (Dynamo 1.6.1, lib/runtime, event_plane).
With a broker it connects to that: here at Unix sockets, which no other user reaches. Dynamo's own environment runs
this, so it imports nothing of this package.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any


def main(published: str, subscribed: str, command: list[str]) -> None:
    """Start the broker as a child, and become the command; whatever ends the command's processes ends the broker."""
    if os.fork() == 0:
        pass_on(published, subscribed)
    os.execvp(command[0], command)


def pass_on(published: str, subscribed: str) -> None:
    """Pass on what is published at one address to all that subscribe at the other."""
    zmq: Any = importlib.import_module("zmq")
    with zmq.Context() as context, context.socket(zmq.XSUB) as inlet, context.socket(zmq.XPUB) as outlet:
        inlet.bind(published)
        outlet.bind(subscribed)
        zmq.proxy(inlet, outlet)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
