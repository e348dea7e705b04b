"""Build models as vLLM does on a GPU, on a machine without one; runs in the engine's own Python.

    .venv-engine/bin/python scripts/vllm_without_gpu.py CAPABILITY MEMORY_GIB TRITON < QUESTIONS

Reads a JSON question a line, with the `folder` of a model's config.json, the `words` of `vllm serve` behind it and a
`rank` of an engine. Answers each with what this rank holds: bytes of its weights, bytes of a token in its cache, and
the kernels of its attention and its experts; or with the error that vLLM ends with. TRITON is a folder with the package
that torch's GPU build requires.

Nothing computes: tensors are on torch's meta device, the other ranks are torch's fake ones, and compiled libraries are
stand-ins. vLLM's own are the checks, the choice of kernels by compute capability, and the shape of each tensor. What it
makes of weights after it has loaded them is not built.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import json
import os
import resource
import sys
import types
import unittest.mock
from typing import Any

CAPABILITY, MEMORY = tuple(map(int, sys.argv[1].split("."))), int(sys.argv[2]) << 30
LIBRARIES = ("flashinfer", "cuda", "cutlass", "quack", "tilelang", "deep_gemm", "pynvml")
EXTENSIONS = (
    "vllm._C_stable_libtorch",
    "vllm._moe_C_stable_libtorch",
    "vllm._flashmla_extension_C",
    "vllm.vllm_flash_attn._vllm_fa2_C",
    "vllm.vllm_flash_attn._vllm_fa3_C",
    "vllm.vllm_flash_attn.cute",
    "vllm.third_party.flashmla.flash_mla_interface",
    "vllm.third_party.deep_gemm",
)
FAKE_RANKS = "fake"
"""torch's own backend of ranks that are not there."""

MAX_BYTES = 8 << 30
"""Of a question: a model that puts its tensors elsewhere than on the meta device ends with an error."""


class StandIn(types.ModuleType):
    """A module that has every name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return unittest.mock.MagicMock(name=f"{self.__name__}.{name}")


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the libraries that vLLM's GPU build brings along."""

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        is_missing = name.startswith(EXTENSIONS) or name.partition(".")[0] in LIBRARIES
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_missing else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = StandIn(spec.name)
        vars(module).update(__version__="9.9", __path__=[])
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


# With no device to see, vLLM keeps Triton though no driver is active (triton_utils/importing.py).
os.environ.update(CUDA_VISIBLE_DEVICES="", VLLM_HAS_FLASHINFER_CUBIN="1", VLLM_LOGGING_LEVEL="ERROR")
sys.path.insert(0, sys.argv[3])
importlib.import_module("tvm_ffi")  # before it finds a stand-in of cuda's, whose types it uses
sys.meta_path.insert(0, StandIns())

import torch  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402
from vllm import platforms  # noqa: E402
from vllm.platforms import cuda, interface  # noqa: E402


class Gpu(cuda.NonNvmlCudaPlatform):  # type: ignore[misc]
    """A GPU by what vLLM asks of it."""

    @classmethod
    def get_device_capability(cls, *_: Any, **__: Any) -> Any:
        return interface.DeviceCapability(*CAPABILITY)

    @classmethod
    def get_device_name(cls, *_: Any, **__: Any) -> str:
        return "GPU"

    @classmethod
    def get_device_total_memory(cls, *_: Any, **__: Any) -> int:
        return MEMORY

    @classmethod
    def num_compute_units(cls, *_: Any, **__: Any) -> int:
        return 132

    @classmethod
    def device_count(cls) -> int:
        return 8

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        return "vllm.distributed.device_communicators.base_device_communicator.DeviceCommunicatorBase"


class OnMeta(TorchFunctionMode):  # type: ignore[misc]
    """Puts on the meta device what code of the engine puts on a GPU."""

    def __torch_function__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        values = {name: _move(value) for name, value in (kwargs or {}).items()}
        return function(*map(_move, args), **values)


def _move(value: Any) -> Any:
    return "meta" if isinstance(value, str | torch.device) and str(value).startswith("cuda") else value


class Queue:
    """A stream or an event of CUDA."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Nothing to open."""


def replace_gpu() -> None:
    """Let vLLM find the GPU; its compiled questions have the answers of csrc/ by compute capability."""
    platforms.current_platform = Gpu()
    platforms.vllm_version_matches_substr = lambda _: False
    number = 10 * CAPABILITY[0] + CAPABILITY[1]
    properties = types.SimpleNamespace(
        total_memory=MEMORY, major=CAPABILITY[0], minor=CAPABILITY[1], multi_processor_count=132, name="GPU",
        shared_memory_per_block_optin=227 << 10,
    )  # fmt: skip
    vars(torch.cuda).update(
        Stream=Queue, Event=Queue, current_device=lambda: "meta", get_device_capability=lambda *_: CAPABILITY,
        get_device_properties=lambda *_: properties,
    )  # fmt: skip
    operations = importlib.import_module("vllm._custom_ops")
    vars(operations).update(
        cutlass_scaled_mm_supports_fp4=lambda _: number >= 100,
        cutlass_scaled_mm_supports_fp8=lambda _: number >= 89,
        cutlass_scaled_mm_supports_block_fp8=lambda _: number >= 90,
        cutlass_group_gemm_supported=lambda _: 90 <= number < 110,
        mxfp4_experts_quant_supported=lambda _: number >= 100,
    )
    registry = importlib.import_module("vllm.model_executor.models.registry")
    vars(registry)["_run_in_subprocess"] = lambda inspect: inspect()
    # Modules register what a compiled operation has when they are imported, and not of one that stands in.
    for name in ("layers.fused_moe", "layers.quantization.fp8", "layers.quantization.modelopt", "models.deepseek_v2"):
        importlib.import_module(f"vllm.model_executor.{name}")
    experts = importlib.import_module("vllm.model_executor.layers.fused_moe.expert_map_manager")
    experts.ExpertMapManager.get_compressed_map_string = lambda _: ""  # a line of the log, of values that are not there
    namespace = torch._ops._OpNamespace
    find = namespace.__getattr__

    def find_or_stand_in(self: Any, name: str) -> Any:
        try:
            return find(self, name)
        except AttributeError:
            if name.startswith("__") or not self.name.startswith(("_C", "_moe_C", "_flashmla", "vllm")):
                raise
            return unittest.mock.MagicMock(name=name)

    namespace.__getattr__ = find_or_stand_in


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Build the model of a question."""
    from vllm.config import set_current_vllm_config
    from vllm.distributed import parallel_state
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.usage.usage_lib import UsageContext
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.utils.torch_utils import set_default_torch_dtype
    from vllm.v1.worker import workspace

    folder = question["folder"]
    words = make_arg_parser(FlexibleArgumentParser()).parse_args([folder, *question["words"]])
    words.model = words.model_tag
    validate_parsed_serve_args(words)
    arguments = AsyncEngineArgs.from_cli_args(words)
    arguments.skip_tokenizer_init = True
    config = arguments.create_engine_config(UsageContext.OPENAI_API_SERVER)
    ranks, rank = config.parallel_config, question["rank"]
    torch.distributed.init_process_group(
        FAKE_RANKS, rank=rank, world_size=ranks.world_size_across_dp, store=FakeStore()
    )
    make_group, group_ranks = torch.distributed.new_group, parallel_state.init_model_parallel_group
    torch.distributed.new_group = lambda members=None, **_: make_group(members, backend=FAKE_RANKS)
    parallel_state.init_model_parallel_group = lambda *values, **names: group_ranks(
        *values, **{**names, "use_message_queue_broadcaster": False}
    )
    with set_current_vllm_config(config):
        parallel_state.init_distributed_environment(ranks.world_size, rank, "tcp://127.0.0.1:0", 0, FAKE_RANKS)
        parallel_state.initialize_model_parallel(ranks.tensor_parallel_size, ranks.pipeline_parallel_size)
        workspace.init_workspace_manager(torch.device("meta"))
        with set_default_torch_dtype(config.model_config.dtype), torch.device("meta"), OnMeta():
            model = initialize_model(config)
        layers = config.compilation_config.static_forward_context.values()
        specs = [layer.get_kv_cache_spec(config) for layer in layers if hasattr(layer, "get_kv_cache_spec")]
    return describe(model, [spec for spec in specs if spec is not None and hasattr(spec, "head_size")])


def describe(model: Any, specs: list[Any]) -> dict[str, Any]:
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    modules = list(model.modules())
    backends: list[Any] = [module.attn_backend for module in modules if hasattr(module, "attn_backend")]
    methods = [module.quant_method for module in modules if getattr(module, "quant_method", None)]
    experts = [vars(method)[name] for method in methods for name in vars(method) if name.endswith("_backend")]
    return {
        "weight_bytes": sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()),
        "token_bytes": sum(spec.page_size_bytes // spec.block_size for spec in specs),
        "attention": sorted({backend.get_name() for backend in backends if hasattr(backend, "get_name")}),
        "experts": sorted({backend.name for backend in experts if hasattr(backend, "name")}),
    }


def main() -> None:
    replace_gpu()
    answers, output = os.fdopen(os.dup(1), "w"), os.open(os.devnull, os.O_WRONLY)
    os.dup2(output, 1)
    for line in sys.stdin:
        read, write = os.pipe()
        child = os.fork()  # each question has ranks, and a context, of its own
        if child == 0:
            resource.setrlimit(resource.RLIMIT_DATA, (MAX_BYTES, MAX_BYTES))
            try:
                result = answer(json.loads(line))
            except Exception as error:  # noqa: BLE001 - the engine's own, of any kind, is the answer
                result = {"error": f"{type(error).__name__}: {error}"[:500]}
            os.write(write, json.dumps(result).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            answers.write((pipe.read() or json.dumps({"error": "it ended"})) + "\n")
        answers.flush()
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
