"""Plugins of the engine (entry points `vllm.general_plugins`), which each of its processes calls when it starts.

The set-up of the engine's environment copies this file into it, so it imports nothing of this package.
BLUEPRINT_LOCAL_SHORTCUTS=off turns off what production does not do, and early-fork has processes fork before they have
threads; AMX's tiles are needed everywhere.
"""

from __future__ import annotations

import builtins
import gc
import importlib
import importlib.util
import multiprocessing
import os
import socket
import sys
import types
from collections.abc import Callable
from multiprocessing import connection, context, forkserver
from pathlib import Path
from typing import Any

PROGRESS_DELAY_US = 1000
"""Longest sleep of NIXL's thread without an event, in µs: the shortest that NIXL takes for a delay."""

CACHE_WAIT_S = 10.0
"""Longest wait for an answer of LMCache's server: more than its two heartbeats of 3 s, which say that it is gone."""

HARMLESS_THREAD = "jemalloc_bg_thd"
"""Of jemalloc, which pyarrow brings under Ray: it prepares for forks itself, and does without the thread after one."""


def _get_shortcuts() -> str:
    return os.environ.get("BLUEPRINT_LOCAL_SHORTCUTS", "")


def ask_for_tiles() -> None:
    """Request AMX's tiles from Linux, if the CPU has them.

    The engine's attention uses them, Linux ends a process that did not request them (SIGILL), and nothing in the engine
    does. No effect on other CPUs.
    """
    importlib.import_module("torch.cpu")._init_amx()


def let_transfers_sleep() -> None:
    """Let NIXL's progress thread sleep until an event, in engines that transfer caches.

    NIXL's Python interface sets its delay to 0, and the thread then polls without a pause: a core for each engine, busy
    or idle, of the two that a small machine has. With any delay it sleeps on the events of its sockets.
    Source: NIXL 1.5.1, nixlUcxSharedThread in src/plugins/ucx/ucx_backend.cpp.
    """
    if "VLLM_NIXL_SIDE_CHANNEL_PORT" not in os.environ or _get_shortcuts() == "off":
        return
    bindings: Any = importlib.import_module("nixl._bindings")

    class Config(bindings.nixlAgentConfig):  # type: ignore[misc]
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, PROGRESS_DELAY_US if name == "pthrDelay" else value)

    bindings.nixlAgentConfig = Config


def read_odd_objects() -> None:
    """Let the engine start on CPU where LMCache is installed.

    Its worker looks through the attributes of all that modules hold, and ends with an AttributeError at an object whose
    `__dict__` is none, such as those of llvmlite, which LMCache imports by numba. Source: vLLM 0.32.0, triton_utils/
    dispatcher.py, `_rebind_kernels`.
    """
    if importlib.util.find_spec("lmcache") is None:
        return
    dispatcher: Any = importlib.import_module("vllm.triton_utils.dispatcher")

    def read_attributes(value: object) -> dict[str, Any]:
        attributes = builtins.vars(value)
        return attributes if isinstance(attributes, dict) else {}

    dispatcher.vars = read_attributes


def go_on_without_lmcache() -> None:
    """Let requests go on, computed and not kept, while LMCache's server does not answer.

    Its client waits 300 s for what a server that ended, or has not registered it, will never answer: a store holds up
    all requests so long and then ends the engine. Here the store counts as a missed heartbeat, so the next one that
    is answered registers anew. At its start the engine waits for the server as before.
    Source: LMCache 0.5.6, EngineDrivenContextShm.prepare_store, and the two adapters of vllm_multi_process_adapter.py.
    """
    if not any("LMCacheMPConnector" in word for word in sys.argv):
        return
    adapters: Any = importlib.import_module("lmcache.integration.vllm.vllm_multi_process_adapter")
    transfers: Any = importlib.import_module("lmcache.v1.multiprocess.transfer_context.worker_transfer")
    scheduler, worker = adapters.LMCacheMPSchedulerAdapter, adapters.LMCacheMPWorkerAdapter
    start, store, stop = scheduler.__init__, worker.submit_store_request, worker.shutdown
    create_context = transfers.create_engine_driven_context

    def start_scheduler(self: Any, *words: Any, **options: Any) -> None:
        start(self, *words, **options)
        self._mq_timeout = CACHE_WAIT_S  # of lookups

    def submit_store(self: Any, *words: Any, **options: Any) -> None:
        try:
            store(self, *words, **options)
        except TimeoutError:
            self._health_event.clear()

    def stop_worker(self: Any) -> None:
        self._mq_timeout = CACHE_WAIT_S
        stop(self)

    def create_limited_context(metadata: Any, client: Any, _: float, **options: Any) -> Any:
        return create_context(metadata, client, CACHE_WAIT_S, **options)

    scheduler.__init__, worker.submit_store_request, worker.shutdown = start_scheduler, submit_store, stop_worker
    transfers.create_engine_driven_context = create_limited_context


def fork_processes() -> None:
    """Fork a replica's further processes from its first, which has imported all that they need.

    On CPU the engine spawns them, since a fork would copy OpenMP's threads that are bound to cores; here none is bound
    (VLLM_CPU_OMP_THREADS_BIND), and a process has one such thread.

    The imports are frozen first, since both processes otherwise search them for garbage four times before they answer.
    A start takes 9.0 CPU-seconds instead of 11.0, and 50 MB less of 1,060 (medians of 4 in turn).

    With early-fork the first process has threads by the time that it starts others, such as Ray's and Dynamo's, whose
    locks would stay locked in a fork. It forks here, before it has them, and the others from that fork: the engine's
    process under Ray takes 0.4 CPU-seconds to start, not 11.
    """
    if _get_shortcuts() == "off":
        return
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)  # which engine_startup puts off until here
    utils: Any = importlib.import_module("vllm.utils.system_utils")
    if _get_shortcuts() == "early-fork":
        if _start_fork_server(utils.set_process_title):
            utils.multiprocessing = types.SimpleNamespace(get_context=lambda _method: _EngineContext())
        return

    def use_fork() -> None:
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
        gc.freeze()

    utils._maybe_force_spawn = use_fork


def _start_fork_server(set_title: Callable[[str], None]) -> bool:
    """Fork this process before it has threads, for `multiprocessing` to fork others from; return False if it has some.

    The standard library's own server would begin with a new Python, and all imports.
    """
    threads = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    if len(threads) - threads.count(HARMLESS_THREAD) > 1 or multiprocessing.parent_process():
        return False
    alive, held = os.pipe()  # the server ends when nobody holds the other end
    with socket.socket(socket.AF_UNIX) as listener:
        address = connection.arbitrary_address("AF_UNIX")  # type: ignore[attr-defined]
        listener.bind(address)
        listener.listen()
        pid = os.fork()
        if not pid:
            try:
                os.close(held)
                set_title("ForkServer")
                forkserver.main(listener.detach(), alive, [])
            finally:
                os._exit(0)
    os.close(alive)
    server: Any = forkserver._forkserver
    server._forkserver_address, server._forkserver_alive_fd, server._forkserver_pid = address, held, pid
    return True


class _EngineProcess(context.ForkServerProcess):
    """A further process, with the environment that the first has when it starts it."""

    def __init__(self, *words: Any, **options: Any) -> None:
        super().__init__(*words, **options)
        self._environment = dict(os.environ)

    def run(self) -> None:
        os.environ.clear()
        os.environ.update(self._environment)
        super().run()


class _EngineContext(context.ForkServerContext):
    Process = _EngineProcess
