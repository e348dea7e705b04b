"""Build models as vLLM does on a GPU, on a machine without one: see `gpu_stand_in`."""

from __future__ import annotations

import importlib
import os
import unittest.mock
from typing import Any

import torch

from scripts import gpu_stand_in
from scripts.gpu_stand_in import CAPABILITY, COUNT, FAKE_RANKS, MEMORY, PROCESSORS, Answer, OnMeta

LIBRARIES = (
    "cuda",
    "cutlass",
    "deep_gemm",
    "flashinfer",
    "pynvml",
    "quack",
    "tilelang",
    "vllm._C_stable_libtorch",
    "vllm._moe_C_stable_libtorch",
    "vllm._flashmla_extension_C",
    "vllm.vllm_flash_attn._vllm_fa2_C",
    "vllm.vllm_flash_attn._vllm_fa3_C",
    "vllm.vllm_flash_attn.cute",
    "vllm.third_party.flashmla.flash_mla_interface",
    "vllm.third_party.deep_gemm",
)

os.environ.update(VLLM_HAS_FLASHINFER_CUBIN="1", VLLM_LOGGING_LEVEL="ERROR")
gpu_stand_in.prepare(LIBRARIES)

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
        return PROCESSORS

    @classmethod
    def device_count(cls) -> int:
        return COUNT

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        return "vllm.distributed.device_communicators.base_device_communicator.DeviceCommunicatorBase"


def replace_gpu() -> None:
    """Let vLLM find the GPU; its compiled questions have the answers of csrc/ by compute capability."""
    platforms.current_platform = Gpu()
    platforms.vllm_version_matches_substr = lambda _: False
    number = 10 * CAPABILITY[0] + CAPABILITY[1]
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


def answer(question: dict[str, Any]) -> Answer:
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
    gpu_stand_in.connect(rank, ranks.world_size_across_dp)
    group_ranks = parallel_state.init_model_parallel_group
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


def describe(model: Any, specs: list[Any]) -> Answer:
    modules = list(model.modules())
    backends: list[Any] = [module.attn_backend for module in modules if hasattr(module, "attn_backend")]
    methods = [module.quant_method for module in modules if getattr(module, "quant_method", None)]
    experts = [vars(method)[name] for method in methods for name in vars(method) if name.endswith("_backend")]
    return {
        "weight_bytes": gpu_stand_in.sum_bytes(model),
        "token_bytes": sum(spec.page_size_bytes // spec.block_size for spec in specs),
        "attention": sorted({backend.get_name() for backend in backends if hasattr(backend, "get_name")}),
        "experts": sorted({backend.name for backend in experts if hasattr(backend, "name")}),
    }


if __name__ == "__main__":
    replace_gpu()
    gpu_stand_in.serve(answer)
