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

_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={folder}/log
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
group.initial.rebalance.delay.ms=0
log.cleaner.dedupe.buffer.size=4194304
"""


def main(port: int, folder: Path, java: Sequence[str]) -> None:
    """Format the broker's folder unless that is done, then become the broker."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "server.properties"
    (controller,) = processes.claim_free_ports(1)  # only the broker itself calls it
    file.write_text(_SETTINGS.format(controller=controller, port=port, folder=folder))
    if not (folder / "log" / "meta.properties").exists():
        subprocess.run([*java, "kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(file)], check=True)
    os.execvp(java[0], [*java, "kafka.Kafka", str(file)])


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
