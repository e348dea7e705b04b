"""Build models as SGLang does on a GPU, on a machine without one: see `gpu_stand_in`."""

from __future__ import annotations

import inspect
import os
import warnings
from typing import Any

import torch

from scripts import gpu_stand_in
from scripts.gpu_stand_in import COUNT, FAKE_RANKS, MEMORY, Answer, OnMeta

LIBRARIES = (
    "blobfile", "cuda", "cutlass", "deep_ep", "deep_gemm", "deepseek_recipe", "easydict", "flash_attn", "flash_mla",
    "flashinfer", "humming", "IPython", "modelscope", "mooncake", "nvshmem", "outlines", "py_spy", "pynvml", "quack",
    "sgl_deep_gemm", "sgl_flash_mla", "sgl_kernel", "smg_grpc_servicer", "tilelang", "tml_renderers",
    "torch_memory_saver",
)  # fmt: skip

warnings.simplefilter("ignore")
os.environ["SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK"] = "1"
gpu_stand_in.prepare(LIBRARIES)
torch.version.cuda = "13.0"
torch.get_device_module = lambda *_: torch.cuda
vars(torch.cuda).update(
    _lazy_init=lambda: None,
    current_device=lambda: 0,
    device_count=lambda: COUNT,
    get_device_name=lambda *_: "GPU",
    is_available=lambda: True,
    mem_get_info=lambda *_: (MEMORY, MEMORY),
    set_device=lambda *_: None,
)

from sglang.srt.distributed import parallel_state  # noqa: E402
from sglang.srt.mem_cache import kv_cache_configurator, kv_cache_dtype  # noqa: E402
from sglang.srt.model_executor.model_runner_components.layer_setup import resolve_layer_indices  # noqa: E402
from sglang.srt.model_executor.model_runner_components.spec_aux_hidden_state import (  # noqa: E402
    SpecAuxHiddenStateConfig,
)
from sglang.srt.utils import common  # noqa: E402

common.get_nvgpu_memory_capacity = lambda: MEMORY / 2**20

from sglang.srt import server_args  # noqa: E402
from sglang.srt.arg_groups.overrides import resolved_view  # noqa: E402
from sglang.srt.configs.load_config import LoadConfig  # noqa: E402
from sglang.srt.configs.model_config import AttentionArch, ModelConfig  # noqa: E402
from sglang.srt.layers import dp_attention, moe  # noqa: E402
from sglang.srt.model_loader import loader, utils  # noqa: E402
from sglang.srt.models import registry  # noqa: E402
from sglang.srt.runtime_context import SpawnRanks, get_parallel, publish  # noqa: E402
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm  # noqa: E402


def answer(question: dict[str, Any]) -> Answer:
    """Build the model of a question, and say what share of the memory weights and cache take."""
    words = ["--model-path", question["folder"], "--skip-tokenizer-init", *question["words"]]
    arguments = server_args.prepare_server_args(words)
    arguments.resolve_once()
    publish(arguments, role="scheduler", ranks=SpawnRanks(world_rank=question["rank"], gpu_id=0))
    settings = resolved_view(arguments)
    ranks = settings.tp_size * settings.pp_size
    gpu_stand_in.connect(question["rank"], ranks)
    leave_out_communicators()
    with OnMeta():
        address = "tcp://127.0.0.1:0"
        parallel_state.init_distributed_environment(ranks, question["rank"], address, 0, FAKE_RANKS)
        parallel_state.initialize_model_parallel(FAKE_RANKS)
        dp_attention.initialize_dp_attention(arguments)
        moe.initialize_moe_config()
        config, load_config = ModelConfig.from_server_args(arguments), LoadConfig()
        with utils.set_default_torch_dtype(config.dtype), torch.device("meta"):
            quantization = loader._get_quantization_config(config, load_config)
            model = loader._initialize_model(config, load_config, quantization)
    if settings.pp_size > 1 and "pp_proxy_tensors" not in inspect.signature(model.forward).parameters:
        raise AssertionError("Pipeline Parallel is not compatible with this model.")  # as ModelRunner says
    weight_bytes = gpu_stand_in.sum_bytes(model)
    return {
        "weight_bytes": weight_bytes,
        "memory_share": round(settings.mem_fraction_static, 4),
        **size_cache(arguments, config, model, weight_bytes),
        "attention": [settings.attention_backend],
        "experts": [settings.moe_runner_backend],
    }


def size_cache(arguments: Any, config: Any, model: Any, weight_bytes: int) -> Answer:
    """Return tokens that the KV cache has room for beside the weights, and most requests of a step."""
    settings = resolved_view(arguments)
    kv_cache_configurator.get_available_gpu_memory = lambda *_, **__: (MEMORY - weight_bytes) / 2**30
    layers = resolve_layer_indices(model=model, model_config=config, is_draft_worker=False)
    dtype_name, dtype = kv_cache_dtype.configure_kv_cache_dtype(
        server_args_kv_cache_dtype=settings.kv_cache_dtype,
        model=model,
        model_dtype=config.dtype,
        is_draft_worker=False,
        is_dflash=False,
        speculative_draft_attention_backend=None,
        speculative_draft_kv_cache_dtype=None,
    )
    configurator = kv_cache_configurator.KVCacheConfigurator(
        device="cuda",
        gpu_id=0,
        attn_dp_size=get_parallel().attn_dp_size,
        pp_size=settings.pp_size,
        pp_group=None,
        model=model,
        model_config=config,
        server_args=arguments,
        kv_cache_dtype=dtype,
        kv_cache_dtype_str=dtype_name or settings.kv_cache_dtype,
        model_dtype=config.dtype,
        page_size=settings.page_size,
        sliding_window_size=getattr(config, "sliding_window_size", None),
        spec_algorithm=SpeculativeAlgorithm.NONE,
        is_draft_worker=False,
        post_capture_kv_active=False,
        spec_aux_config=SpecAuxHiddenStateConfig(),
        is_hybrid_swa=config.is_hybrid_swa,
        is_hybrid_swa_compress=config.is_hybrid_swa_compress,
        use_mla_backend=config.attention_arch == AttentionArch.MLA,
        layer_info=layers,
        forward_stream=None,
        req_to_token_pool=None,
        token_to_kv_pool_allocator=None,
        memory_pool_config=None,
    )
    pools = configurator._resolve_memory_pool_config(MEMORY / 2**30)
    return {"tokens": int(pools.max_total_num_tokens), "requests": int(pools.max_running_requests)}


def leave_out_communicators() -> None:
    """Let groups of ranks have no connections beside torch's own."""
    start = parallel_state.GroupCoordinator.__init__
    names = list(inspect.signature(start).parameters)[1:]

    def start_plain(self: Any, *values: Any, **options: Any) -> None:
        arguments = dict(zip(names, values, strict=False)) | options
        start(self, **{name: False if name.startswith("use_") else value for name, value in arguments.items()})

    parallel_state.GroupCoordinator.__init__ = start_plain


if __name__ == "__main__":
    registry.ModelRegistry.get_supported_archs()
    gpu_stand_in.serve(answer)
