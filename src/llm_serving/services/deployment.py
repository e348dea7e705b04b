"""A blueprint of any kind, resolved against a fleet: frozen data, every number decided."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from llm_serving.services.environment import Environment, Process, ResolvedData
from llm_serving.services.service import Service


class Deployment(ResolvedData):
    """What runs of a blueprint, whatever its kind."""

    kind: str
    name: str
    target: str
    fleet: str
    environment: Environment
    notes: tuple[str, ...] = ()
    """What the user should know of this target, a sentence each."""

    emulated: tuple[str, ...] = ()
    """Parts that are emulated; shown with every result."""

    services: tuple[Service, ...] = ()
    """What the target runs, in the order of starting."""

    url: str = ""
    """Base URL for clients; empty where there is no endpoint."""

    @property
    @abstractmethod
    def worker_processes(self) -> tuple[Process, ...]:
        """The processes that do the work."""

    @property
    def endpoint_processes(self) -> tuple[Process, ...]:
        """The processes before the workers, which start after them; none where there is no endpoint."""
        return ()

    @property
    def processes(self) -> tuple[Process, ...]:
        """All that runs, in the order of starting: emulated AWS, the workers, what is before them."""
        return (*self.environment.services, *self.worker_processes, *self.endpoint_processes)

    @property
    def served_models(self) -> tuple[Any, ...]:
        """The models that clients can name; none where there is no inference API."""
        return ()

    @property
    def loaded_models(self) -> tuple[Any, ...]:
        """The models whose weights the bucket must hold before the workers start."""
        return ()
