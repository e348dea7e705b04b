"""The file `rendered/NAME/eks/eks.yaml` of a batch: typed data of the stack batch-NAME, and values of charts/batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from llm_serving.fleet.model import Fleet, Name
from llm_serving.settings.document import Conflict, Document, Settings, load
from llm_serving.settings.errors import InputError
from llm_serving.targets.on_aws.rendered import BatchManifest, Port, ZeroOrMore

FILE = "eks.yaml"
"""The rendered file. Of other kinds it holds values of charts/inference alone."""


class Toleration(Settings):
    """A taint that workers bear, in Kubernetes' words."""

    key: str
    value: str
    effect: str


class EksBatch(BatchManifest):
    """A deployment that runs batches."""

    ORCHESTRATOR = "eks"

    namespace: Name
    metrics_port: Port
    """Port of the metrics of a deployment's engines."""

    node_labels: dict[str, str]
    """Labels of the nodes that workers run on; empty for any without taints."""

    tolerations: ZeroOrMore[Toleration]
    queue: str
    """Kueue's LocalQueue that admits the workers; empty where they wait in none."""

    def find_conflicts(self) -> Iterable[Iterator[Conflict]]:
        return (self._check_single_api(),)


def read(path: Path, fleet: Document[Fleet]) -> Document[EksBatch]:
    """Read the batch of the file `path` for a fleet.

    Raises:
        InputError: with every mistake of the file, or it is of another fleet.
    """
    document = load(path, EksBatch)
    if document.value.fleet != fleet.value.name:
        reason, fix = f"{fleet.path} is {fleet.value.name}", f"fleet: {fleet.value.name}"
        raise InputError([document.build_mistake(["fleet"], document.value.fleet, reason, fix)])
    return document


def format_service_account(batch: str, service: str) -> str:
    """Format the name of the service account that a program's pods act as; charts/batch names it alike."""
    return f"{batch}-{service}"
