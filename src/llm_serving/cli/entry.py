"""Start the command line: Ctrl-C while it is still imported ends it without a traceback."""

from __future__ import annotations

import signal


def main() -> None:
    """Import the command line, which starts slowly, and run it."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # not where it is ignored, as in the background of a script
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from llm_serving.cli import main as command_line

    signal.signal(signal.SIGINT, handler)
    command_line.main()
