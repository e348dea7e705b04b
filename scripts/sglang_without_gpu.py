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
    "blobfile",
    "cuda",
    "cutlass",
    "deep_ep",
    "deep_gemm",
    "deepseek_recipe",
    "easydict",
    "flash_attn",
    "flash_mla",
    "flashinfer",
    "humming",
    "IPython",
    "modelscope",
    "mooncake",
    "nvshmem",
    "outlines",
    "py_spy",
    "pynvml",
    "quack",
    "sgl_deep_gemm",
    "sgl_flash_mla",
    "sgl_kernel",
    "smg_grpc_servicer",
    "tilelang",
    "tml_renderers",
    "torch_memory_saver",
)

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
from sglang.srt.utils import common  # noqa: E402

common.get_nvgpu_memory_capacity = lambda: MEMORY / 2**20

from sglang.srt import server_args  # noqa: E402
from sglang.srt.arg_groups.overrides import resolved_view  # noqa: E402
from sglang.srt.configs.load_config import LoadConfig  # noqa: E402
from sglang.srt.configs.model_config import ModelConfig  # noqa: E402
from sglang.srt.layers import dp_attention, moe  # noqa: E402
from sglang.srt.model_loader import loader, utils  # noqa: E402
from sglang.srt.models import registry  # noqa: E402
from sglang.srt.runtime_context import SpawnRanks, publish  # noqa: E402


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
    return {
        "weight_bytes": gpu_stand_in.sum_bytes(model),
        "memory_share": round(settings.mem_fraction_static, 4),
        "attention": [settings.attention_backend],
        "experts": [settings.moe_runner_backend],
    }


def leave_out_communicators() -> None:
    """Let groups of ranks have no connections beside torch's own."""
    start = parallel_state.GroupCoordinator.__init__
    names = list(inspect.signature(start).parameters)[1:]

    def start_plain(self: Any, *values: Any, **named: Any) -> None:
        given = dict(zip(names, values, strict=False)) | named
        start(self, **{name: False if name.startswith("use_") else value for name, value in given.items()})

    parallel_state.GroupCoordinator.__init__ = start_plain


if __name__ == "__main__":
    registry.ModelRegistry.get_supported_archs()
    gpu_stand_in.serve(answer)
