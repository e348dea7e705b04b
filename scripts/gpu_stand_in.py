"""Stands in for a GPU and its libraries where an engine builds models on a machine without one.

Runs in an engine's own Python, in the programs `vllm_without_gpu` and `sglang_without_gpu`:

    .venv-engine/bin/python -m scripts.ENGINE_without_gpu CAPABILITY MEMORY_GIB FOLDER < QUESTIONS

A program reads a JSON question a line: the `folder` of a model's config.json, the `words` behind it in the command of
the server, and a `rank` of an engine. It answers each with what this rank holds: bytes of its weights, what the engine
says of its cache, and the kernels of its attention and its experts; or with the error that the engine ends with. FOLDER
has the packages that the engine's environment lacks.

Nothing computes: tensors are on torch's meta device, the other ranks are torch's fake ones, and compiled libraries are
modules that have every name. The engine's own are the checks, the choice of kernels by compute capability, and the
shape of each tensor. What it makes of weights after it has loaded them is not built.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from scripts.stand_ins import StandIns

CAPABILITY, MEMORY = tuple(map(int, sys.argv[1].split("."))), int(sys.argv[2]) << 30
COUNT, PROCESSORS = 8, 132
FAKE_RANKS = "fake"
"""torch's own backend of ranks that are not there."""

MAX_BYTES = 8 << 30
"""Of a question: a model that puts its tensors elsewhere than on the meta device ends with an error."""

Answer = dict[str, Any]


class OnMeta(TorchFunctionMode):  # type: ignore[misc]
    """Puts on the meta device what code of the engine puts on a GPU."""

    def __torch_function__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        values = {name: _move(value) for name, value in (kwargs or {}).items()}
        if isinstance(values.get("device"), int):
            values["device"] = "meta"
        return function(*map(_move, args), **values)


def _move(value: Any) -> Any:
    return "meta" if isinstance(value, str | torch.device) and str(value).startswith("cuda") else value


class Queue:
    """A stream or an event of CUDA."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Nothing to open."""


def prepare(libraries: Sequence[str]) -> None:
    """Let libraries be found, and torch answer as on the GPU; before the engine is imported."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    sys.path.insert(0, sys.argv[3])
    importlib.import_module("tvm_ffi")  # before it finds a stand-in of cuda's, whose types it uses
    sys.meta_path.insert(0, StandIns(libraries))
    properties = types.SimpleNamespace(
        total_memory=MEMORY, major=CAPABILITY[0], minor=CAPABILITY[1], multi_processor_count=PROCESSORS, name="GPU",
        shared_memory_per_block_optin=227 << 10,
    )  # fmt: skip
    vars(torch.cuda).update(
        Stream=Queue, Event=Queue, current_device=lambda: "meta", get_device_capability=lambda *_: CAPABILITY,
        get_device_properties=lambda *_: properties,
    )  # fmt: skip


def connect(rank: int, ranks: int) -> None:
    """Make the process one of several ranks, of which the others are not there."""
    torch.distributed.init_process_group(FAKE_RANKS, rank=rank, world_size=ranks, store=FakeStore())
    make_group = torch.distributed.new_group
    torch.distributed.new_group = lambda ranks=None, *_, **__: make_group(ranks, backend=FAKE_RANKS)


def sum_bytes(model: Any) -> int:
    """Return bytes of a model's parameters and buffers."""
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def serve(answer: Callable[[dict[str, Any]], Answer]) -> None:
    """Answer the questions on the standard input, each in a process with ranks, and a context, of its own."""
    answers, output = os.fdopen(os.dup(1), "w"), os.open(os.devnull, os.O_WRONLY)
    os.dup2(output, 1)
    for line in sys.stdin:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            resource.setrlimit(resource.RLIMIT_DATA, (MAX_BYTES, MAX_BYTES))
            try:
                result = answer(json.loads(line))
            except BaseException as error:  # noqa: BLE001 - the engine's own, of any kind, is the answer
                result = {"error": f"{type(error).__name__}: {error}"[:500]}
            os.write(write, json.dumps(result).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            answers.write((pipe.read() or json.dumps({"error": "it ended"})) + "\n")
        answers.flush()
        os.waitpid(child, 0)
