"""Runs a Kafka broker of this machine: kafka_program.py PORT FOLDER JAVA OPTION..."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from llm_serving import processes

_CLUSTER = "bGxtLXNlcnZpbmctbG9jYQ"
"""A Kafka cluster's id: 16 bytes in base64."""

_SETTINGS = Path(__file__).with_name("kafka.properties")


def main(port: int, folder: Path, java: Sequence[str]) -> None:
    """Format the broker's folder unless that is done, then become the broker."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "server.properties"
    (controller,) = processes.claim_free_ports(1)  # only the broker itself calls it
    file.write_text(_SETTINGS.read_text().format(controller=controller, port=port, folder=folder))
    if not (folder / "log" / "meta.properties").exists():
        subprocess.run([*java, "kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(file)], check=True)
    os.execvp(java[0], [*java, "kafka.Kafka", str(file)])


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
