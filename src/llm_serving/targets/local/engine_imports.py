"""Runs once in the engine's environment: checks that the engine imports, and makes its starts fast.

    PYTHON engine_imports.py CACHE [MODULE...]

Importing writes the byte code of the 5,000 modules that a start needs: 10 instead of 23 CPU-seconds for each process of
a replica. What transformers finds in its own folders on the way is kept for engine_startup. Inspecting the architecture
of the generated models saves each first start another such process; the engine caches the result under CACHE, and it is
copied to a deployment's own cache.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

ARCHITECTURES = ("Qwen3ForCausalLM", "Qwen3VLForConditionalGeneration")  # of generated models: `tiny`, `tiny-vision`
MODULES = (
    "vllm.entrypoints.cli.main",
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.qwen3",
    "runai_model_streamer",
    "runai_model_streamer_s3",
    "nixl._api",
    "zmq",
)
"""What a start of the engine imports; images/vllm-cpu keeps their byte code too."""

_ROUTER = "vllm_router.launch_router"


def main() -> None:
    os.environ["VLLM_CACHE_ROOT"] = sys.argv[1]
    for module in sys.argv[2:] or (*MODULES, _ROUTER):
        importlib.import_module(module)
    registry: Any = importlib.import_module("vllm.model_executor.models.registry")
    registry._run_in_subprocess = lambda inspect: inspect()  # another would import the engine again
    for name in ARCHITECTURES:
        registry.ModelRegistry.models[name].inspect_model_cls()
    importlib.import_module("engine_startup").contents.write()


if __name__ == "__main__":
    main()
