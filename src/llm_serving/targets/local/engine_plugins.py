"""Runs inside each of the engine's processes, called by the engine's own way for plugins (`vllm.general_plugins`).

The set-up of the engine's environment copies this file into it: nothing of this package is there.
"""

from __future__ import annotations

import gc
import importlib
import os
from typing import Any

PROGRESS_DELAY_US = 1000
"""The longest that NIXL's thread sleeps where no event wakes it, in µs: the least that it can tell from none."""


def ask_for_tiles() -> None:
    """Asks Linux for AMX's tiles, where the CPU has them.

    The engine's attention computes with them, Linux ends a process for it that has not asked (SIGILL), and nothing in
    the engine asks. On other CPUs it does nothing.
    """
    importlib.import_module("torch.cpu")._init_amx()


def let_transfers_sleep() -> None:
    """Lets NIXL's progress thread sleep until something arrives, in engines that hand caches on.

    NIXL's Python interface sets its delay to 0, with which the thread asks without a pause: a whole core for each
    engine, idle or not, of the two that a small machine has. With any delay it sleeps on the events of its sockets.
    Source: NIXL 1.5.1, nixlUcxSharedThread in src/plugins/ucx/ucx_backend.cpp.
    """
    if "VLLM_NIXL_SIDE_CHANNEL_PORT" not in os.environ:
        return
    bindings: Any = importlib.import_module("nixl._bindings")

    class Config(bindings.nixlAgentConfig):  # type: ignore[misc]
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, PROGRESS_DELAY_US if name == "pthrDelay" else value)

    bindings.nixlAgentConfig = Config


def fork_processes() -> None:
    """Lets a replica's further processes begin as copies of its first, which has imported all that they need.

    On CPU the engine has each of them begin anew, for threads of OpenMP that were bound to cores would be copied along:
    here nothing is bound (VLLM_CPU_OMP_THREADS_BIND), and a process has one such thread.

    What was imported stays for good and is set aside first: both processes look through all that they have for garbage
    four times before they answer. 9.0 CPU-seconds for a start of 11.0, and 50 MB less of 1,060 (medians of 4 in turn).
    """
    utils: Any = importlib.import_module("vllm.utils.system_utils")

    def use_fork() -> None:
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
        gc.freeze()

    utils._maybe_force_spawn = use_fork
