"""Starts the engine of a replica of Serve on this machine without what a machine of its own alone needs.

Each of the three left out is a process that imports the engine: 8 CPU-seconds and 0.6 GB. Ray's environment
imports this, so it imports nothing of this package.
"""

from __future__ import annotations

import importlib
from typing import Any

callbacks: Any = importlib.import_module("ray.llm._internal.common.callbacks.base")


class LeanStart(callbacks.CallbackBase):  # type: ignore[misc]
    """What Ray calls around the start of an engine (`callback_config` of an LLMConfig)."""

    def __init__(self, *words: Any, **options: Any) -> None:
        """Leave out the task that downloads a model to the node: its weights are in a folder."""
        super().__init__(*words, **options)
        self.ctx.run_init_node = False

    async def on_before_node_init(self) -> None:
        """Leave out the process of the only rank, as without Ray, and the collector of usage, which reports nothing.

        Source: Ray 2.60.0, which sets `mp` for every engine on CPUs (llm/_internal/serve/engines/vllm/vllm_models.py).
        """
        executors: Any = importlib.import_module("vllm.v1.executor.abstract")
        executors.Executor.get_class = staticmethod(keep_one_process(executors.Executor.get_class))
        server: Any = importlib.import_module("ray.llm._internal.serve.core.server.llm_server")
        server.push_telemetry_report_for_all_models = lambda **_: None


def keep_one_process(get_class: Any) -> Any:
    """Return what chooses an engine's executor, with that of one process where the engine has one rank."""

    def get_lean_class(config: Any) -> Any:
        if config.parallel_config.world_size == 1:
            config.parallel_config.distributed_executor_backend = "uni"
        return get_class(config)

    return get_lean_class
