"""Query the code of the engine and its router without starting either; runs in the engine's own Python.

Reads one JSON request a line from standard input: a handler and its argument. Prints one line of JSON for each.

- `vllm` and `vllm-router` parse a command line: the port, or the exit status of a refusal.
- `planner`, vLLM's own, computes the tokens of a cache as vLLM would log them: `layers` (of them `sliding` with a
  `window`, or `chunked` instead, and `linear` with `state` numbers), `heads`, `size` of a head (those that look back over
  everything have `full_heads` of `full_size`; `value_size` of their values, 0 is the same), `latent`, `index` bytes in `indexed` of them, `context`, `bytes`, `batch`,
  `block`; `draft` are the `layers`, `heads` and `size` of a draft model.
- `minimax` is what sparse attention of MiniMax-M3, with an indexer of a `width`, caches: tokens of the `blocks` that its
  kernels take, and `index` bytes of a token.
- `compressed` computes the tokens of a cache as `planner`, of DeepSeek V4's layers, with the cache that vLLM's own ask
  for: `ratios` are how many tokens of each become one vector.
- `parameters` are those of transformers' own model of a config.json, built without memory for them.
- `options` are those that scripts/record_vllm_options.py records.
- `picture` decodes a PNG file in base64, `png`, and counts its tokens as Qwen's processor with `factor`, `min_pixels` and
  `max_pixels`: its size, and the tokens.
- `algorithms` are those of the modules with `names` in Qwen3.5, by the `settings` of a checkpoint of mixed precision: None
  is as it was.
- `kimi` counts the tokens of a picture of a width and height as Kimi K2.5's processor in vLLM.
- `media` counts the tokens of the largest picture and video of a `context` as the code of a `kind` of models in vLLM,
  with the limits of `picture` and `video` in pixels.
- `adapters` counts the numbers that vLLM keeps for `count` LoRA adapters of a `rank` of a model with a config.json, whose
  `modules` they change; None is all.
- `run` runs `vllm`, or a program in Python, with `words` and `environment` in a fork, which need not import the engine,
  with its output in a file, `log`: the exit status. A program that becomes another in Python does so in the fork, and
  what it starts by `python3 -m` is a fork too.
- `mooncake` loads the settings of its connector from a file: what it takes, and how the names of a rank's prompts begin.
- `processes` counts, with or without engine_plugins, the objects that garbage collection skips in a replica's further
  process: 0 unless it is a fork of the first.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import dataclasses
import functools
import gc
import importlib
import io
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
import unittest.mock
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import engine_plugins
import torch
import transformers
from PIL import Image
from transformers.models.kimi_k25.image_processing_kimi_k25 import Kimi_K25ImageProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
from vllm import plugins
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import (
    destroy_model_parallel,
    init_distributed_environment,
    initialize_model_parallel,
)
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.data import KeyMetadata, PoolKey
from vllm.distributed.mooncake_store import MooncakeStoreConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.entrypoints.cli import main as vllm_main
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.lora.layers import FusedMoEWithLoRA
from vllm.lora.model_manager import LoRAModelManager
from vllm.model_executor.layers.quantization.modelopt import ModelOptMixedPrecisionConfig
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.model_executor.models.qwen2_5_vl import Qwen2_5_VLProcessingInfo
from vllm.model_executor.models.qwen3_vl import Qwen3VLProcessingInfo
from vllm.models.deepseek_v4.attention import DeepseekV4Attention, DeepseekV4IndexerCache
from vllm.models.deepseek_v4.compressor import CompressorStateCache
from vllm.models.deepseek_v4.sparse_mla import DeepseekV4SparseMLABackend
from vllm.models.minimax_m3.common.indexer import MiniMaxM3IndexerBackend, MiniMaxM3IndexerCache
from vllm.models.minimax_m3.common.mm_preprocess import MiniMaxM3VLProcessingInfo
from vllm.models.minimax_m3.common.sparse_attention import MiniMaxM3SparseBackend
from vllm.transformers_utils.processors.kimi_k25_vision_fused import navit_resize_image
from vllm.transformers_utils.processors.minimax_m3 import MiniMaxM3VLImageProcessor, MiniMaxM3VLVideoProcessor
from vllm.utils import system_utils
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.attention.backends.mla.indexer import DeepseekV4IndexerBackend
from vllm.v1.attention.backends.mla.sparse_swa import DeepseekV4SWACache
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm_router.launch_router import parse_router_args

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
"""Linux's own: the signal that a process gets when its parent ends; who gets the children of a process that ended."""


def parse_engine_port(words: list[str]) -> int:
    """The port that `vllm serve` would listen on."""
    parsed = make_arg_parser(FlexibleArgumentParser()).parse_args(words)
    validate_parsed_serve_args(parsed)
    return int(parsed.port)


def parse_router_port(words: list[str]) -> int:
    """The port that vllm-router would listen on."""
    return int(parse_router_args(words).port)


def build_config(question: dict[str, Any]) -> Any:
    """The few settings that the planner looks at."""
    return SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=question["context"]),
        # With asynchronous scheduling two batches are under way.
        max_in_flight_tokens=2 * question["batch"],
        parallel_config=SimpleNamespace(decode_context_parallel_size=1),
        cache_config=SimpleNamespace(
            block_size=question["block"],
            num_gpu_blocks_override=None,
            enable_prefix_caching=True,
            mamba_cache_mode="align",
            prefix_cache_retention_interval=None,
            get_resolved_kv_cache_layout=lambda: KVCacheLayout.LBNHC,
        ),
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        attention_config=SimpleNamespace(hisparse_config=None),
        speculative_config=None,
        kv_transfer_config=None,
    )


def build_layer(question: dict[str, Any], number: int) -> Any:
    """The cache of one layer; the sliding ones and the others alternate as long as there are both."""
    common = {
        "block_size": question["block"],
        "num_kv_heads": question["heads"],
        "head_size": question["size"],
        "dtype": torch.bfloat16,
    }
    if question["latent"]:
        return MLAAttentionSpec(**common)
    common["head_size_v"] = question["value_size"] or None
    if number < question["linear"]:
        page = FullAttentionSpec(**common).page_size_bytes
        return MambaSpec(
            shapes=((question["state"],),),
            dtypes=(torch.bfloat16,),
            block_size=question["block"],
            page_size_padded=page,
            mamba_cache_mode="align",
        )
    if number < question["linear"] + question["sliding"]:
        if question["chunked"]:
            return ChunkedLocalAttentionSpec(**common, attention_chunk_size=question["window"])
        return SlidingWindowSpec(**common, sliding_window=question["window"], dcp_sharded=False)
    heads = {"num_kv_heads": question["full_heads"], "head_size": question["full_size"]}
    return FullAttentionSpec(**{**common, **heads})


def count_cache_tokens(question: dict[str, Any]) -> int:
    """Tokens of the cache."""
    settings = build_config(question)
    if question["state"]:
        token_bytes = 4 * question["heads"] * question["size"]
        question["block"] *= -(-2 * question["state"] // (question["block"] * token_bytes))
        settings = build_config(question)
    layers = {f"layer{number}": build_layer(question, number) for number in range(question["layers"])}
    if question["index"]:
        spec = MLAAttentionSpec(
            block_size=question["block"], num_kv_heads=1, head_size=question["index"], dtype=torch.uint8
        )
        layers |= {f"index{number}": spec for number in range(question["indexed"])}
    for number in range(question.get("draft", {}).get("layers", 0)):
        layers[f"draft{number}"] = FullAttentionSpec(
            block_size=question["block"],
            num_kv_heads=question["draft"]["heads"],
            head_size=question["draft"]["size"],
            dtype=torch.bfloat16,
        )
    groups = kv_cache_utils.get_kv_cache_groups(settings, layers)
    plan = kv_cache_utils.get_kv_cache_config_from_groups(settings, groups, question["bytes"])
    return int(kv_cache_utils.get_kv_cache_capacity(settings, plan)[0])


def describe_minimax_cache(width: int) -> dict[str, Any]:
    """What each layer with an indexer caches beside its keys and values."""
    settings, (block,) = VllmConfig(), MiniMaxM3SparseBackend.get_supported_kernel_block_sizes()
    settings.cache_config.block_size = block
    with set_current_vllm_config(settings):
        spec = MiniMaxM3IndexerCache(width, "indexer").get_kv_cache_spec(settings)
    return {
        "blocks": [block, *MiniMaxM3IndexerBackend.get_supported_kernel_block_sizes()],
        "index": spec.page_size_bytes / block,
    }


def count_compressed_tokens(question: dict[str, Any]) -> int:
    """Tokens of the cache, in the layout that the indexer asks for."""
    settings, planned = VllmConfig(), build_config({**question, "block": 256})
    (settings.cache_config.block_size,) = DeepseekV4SparseMLABackend.get_supported_kernel_block_sizes()
    settings.cache_config.cache_dtype = "fp8_ds_mla"
    planned.cache_config.get_resolved_kv_cache_layout = lambda: DeepseekV4IndexerBackend.supported_kv_cache_layouts()[0]
    layers: dict[str, Any] = {}
    with set_current_vllm_config(settings):
        for number, ratio in enumerate(question["ratios"]):
            layers[f"{number}.window"] = DeepseekV4SWACache(
                512, question["window"], torch.uint8, f"{number}.window", settings.cache_config
            )
            if not ratio:
                continue
            layers[f"{number}.main"] = attention = SimpleNamespace(
                compress_ratio=ratio, kv_cache_dtype="fp8_ds_mla", head_dim=512
            )
            attention.get_kv_cache_spec = functools.partial(DeepseekV4Attention.get_kv_cache_spec, attention)
            sizes = {"state": 512, "index state": 128} if ratio == 4 else {"state": 512}
            for name, size in sizes.items():
                width = (4 if ratio == 4 else 2) * size
                name = f"{number}.{name}"
                layers[name] = CompressorStateCache(width, torch.float32, ratio, name)
            if ratio == 4:
                name = f"{number}.index"
                layers[name] = DeepseekV4IndexerCache(132, torch.uint8, name, settings.cache_config, ratio)
        specs = {name: layer.get_kv_cache_spec(settings) for name, layer in layers.items()}
    groups = kv_cache_utils.get_kv_cache_groups(planned, specs)
    plan = kv_cache_utils.get_kv_cache_config_from_groups(planned, groups, question["bytes"])
    return int(kv_cache_utils.get_kv_cache_capacity(planned, plan)[0])


def count_parameters(config: dict[str, Any]) -> int:
    """Parameters of the model, those that are tied once."""
    numbers = {key: value for key, value in config.items() if key not in ("model_type", "quantization_config")}
    # Kimi's own code is DeepSeek's, as its config.json says.
    if numbers.get("text_config", {}).get("model_type") == "kimi_k2":
        numbers["text_config"] = {**numbers["text_config"], "model_type": "deepseek_v3"}
    kind = {"kimi_k2": "deepseek_v3"}.get(config["model_type"], config["model_type"])
    settings = transformers.AutoConfig.for_model(kind, **numbers)
    name = config["architectures"][0].replace("KimiK25", "Kimi_K25")
    with torch.device("meta"):
        model = getattr(transformers, name)(settings)
    kept = model.state_dict().keys()
    stored = dict(model.named_parameters()) | {name: buffer for name, buffer in model.named_buffers() if name in kept}
    return sum(tensor.numel() for tensor in stored.values())


def count_media_tokens(request: dict[str, Any]) -> dict[str, int]:
    """The numbers that the files of Qwen's models have are those of the request; MiniMax-M3's are in its classes."""
    images, videos = MiniMaxM3VLImageProcessor(), MiniMaxM3VLVideoProcessor()
    if request["kind"] != "minimax_m3_vl":
        images, videos = Qwen2VLImageProcessor(size=request["picture"]), Qwen3VLVideoProcessor(size=request["video"])
    info = object.__new__(MEDIA_MODELS[request["kind"]])
    info.get_hf_processor = lambda: SimpleNamespace(image_processor=images, video_processor=videos)
    info.get_hf_config = lambda: transformers.AutoConfig.for_model(request["kind"])
    info._merge_and_resolve_mm_processor_kwargs = lambda _: {}
    return dict(info.get_mm_max_tokens_per_item(request["context"], {"image": 1, "video": 1}))


def count_adapter_numbers(request: dict[str, Any]) -> int:
    """All of them are in the modules that vLLM puts in the place of the model's own."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(request["config"]))
        arguments = EngineArgs(
            model=folder, skip_tokenizer_init=True, enable_lora=True, max_loras=request["count"],
            max_lora_rank=request["rank"], lora_target_modules=request["modules"],
        )  # fmt: skip
        config = arguments.create_engine_config()
    with set_current_vllm_config(config):
        init_distributed_environment(1, 0, "tcp://127.0.0.1:0", 0, "gloo")
        destroy_model_parallel()  # of a model before, which may have no experts
        initialize_model_parallel()
        model = initialize_model(config)
        # No kernel of a CPU runs experts with adapters: the checks of kernels are left out, the tensors are vLLM's own.
        kernels = {"__init__": _describe_experts, "set_mapping": lambda *_: None}
        with unittest.mock.patch.multiple(FusedMoEWithLoRA, **kernels):
            manager = LoRAModelManager(model, 1, 1, 512, config.lora_config, torch.device("cpu"), config)
    tensors = {
        tensor.data_ptr(): tensor.numel()
        for module in manager.modules.values()
        for name, kept in vars(module).items()
        if re.fullmatch(r"(w13_|w2_)?lora_[ab]_stacked", name)
        for tensor in (kept if isinstance(kept, tuple) else [kept])
        if isinstance(tensor, torch.Tensor)
    }
    return sum(tensors.values())


def _describe_experts(layer: FusedMoEWithLoRA, base_layer: Any) -> None:
    """Set what the sizes of an expert's adapters follow from."""
    torch.nn.Module.__init__(layer)
    layer.base_layer, layer.moe_config = base_layer, base_layer.moe_config
    layer.tp_size, layer.device, layer._w13_slices = 1, torch.device("cpu"), 2
    layer.fully_sharded = layer.enable_moe_shared_loras = False


def count_kimi_tokens(size: list[int]) -> int:
    """Tokens of a picture of that width and height, with the limits of Kimi's processor in transformers."""
    processor = Kimi_K25ImageProcessor
    row = navit_resize_image(
        *size, processor.patch_size, processor.merge_size, processor.max_patches, processor.size["max_height"], None
    )
    return row["num_tokens"]


def resolve_algorithms(question: dict[str, Any]) -> list[str | None]:
    """What each module is stored in, by vLLM's own reader, which knows it by its name in vLLM's model."""
    model = importlib.import_module("vllm.model_executor.models.qwen3_5").Qwen3_5MoeForConditionalGeneration
    reader = ModelOptMixedPrecisionConfig.from_config(question["settings"])
    reader.packed_modules_mapping = model.packed_modules_mapping
    reader.apply_vllm_mapper(model.hf_to_vllm_mapper)
    return [None if reader.is_layer_excluded(name) else reader._resolve_quant_algo(name) for name in question["names"]]


def describe_picture(question: dict[str, Any]) -> dict[str, Any]:
    """Size of a picture as Pillow decodes it, and its tokens."""
    with Image.open(io.BytesIO(base64.b64decode(question.pop("png")))) as picture:
        picture.load()
        width, height = picture.size
    rows, columns = smart_resize(height, width, **question)
    return {"size": [width, height], "tokens": rows * columns // question["factor"] ** 2}


WITHOUT_PLUGINS = system_utils._maybe_force_spawn
"""Taken before a question of another kind has the engine load them."""


def count_frozen_objects(with_plugins: bool) -> int:
    """Objects that are looked through no more by the time that another process is about to begin."""
    gc.unfreeze()
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"  # as the engine does where it finds no accelerator
    system_utils._maybe_force_spawn = WITHOUT_PLUGINS
    if with_plugins:
        engine_plugins.fork_processes()
    return gc.get_freeze_count() if system_utils.get_mp_context().get_start_method() == "fork" else 0


def run_program(question: dict[str, Any]) -> int:
    """The exit status of a program."""
    for module in ("vllm.v1.worker.cpu_worker", "lmcache.v1.multiprocess.server"):
        importlib.import_module(module)  # once for all forks
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    status = os.waitpid(fork(start_program, question), 0)[1]
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()  # for what it left, such as a server that ends: the next one takes its port
    return os.waitstatus_to_exitcode(status)


def fork(run: Callable[[Any], None], argument: Any) -> int:
    """The process of a fork that runs a function."""
    child = os.fork()
    if child:
        return child
    gc.freeze()  # or each fork looks through all that was imported
    status = 1
    try:
        run(argument)
        status = 0
    except BaseException:  # noqa: BLE001 - as Python does at its end
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(status)


def start_program(question: dict[str, Any]) -> None:
    """Become the program, in a fork."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    log = os.open(question["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for output in (1, 2):
        os.dup2(log, output)
    os.environ.update(question["environment"])
    plugins.plugins_loaded = False  # for this command line
    os.execvp = lambda _, words: become(words[1:])  # type: ignore[assignment, return-value]
    subprocess.Popen._execute_child = execute_or_fork  # type: ignore[attr-defined]
    become(question["words"])


EXECUTE: Any = subprocess.Popen._execute_child  # type: ignore[attr-defined]


def execute_or_fork(process: Any, words: Any, *others: Any) -> None:
    """Start a process as `subprocess` does, but `python3 -m` as a fork, unless it reads what the caller writes: as where
    vLLM keeps no description of a model yet."""
    if "-m" in words[:2] and process.stdin is None:
        process.pid, process._child_created = fork(run_module, list(words[2:])), True
    else:
        EXECUTE(process, words, *others)


def run_module(words: list[str]) -> None:
    """Run what `python3 -m` would."""
    sys.argv = words
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


def become(words: list[str]) -> None:
    """Run what the words start."""
    sys.argv = words
    if words[0] == "vllm":
        vllm_main.main()
    else:
        sys.path.insert(0, str(Path(words[0]).parent))
        runpy.run_path(words[0], run_name="__main__")


def load_mooncake_settings(file: str) -> tuple[dict[str, Any], str]:
    """The settings, and the beginning of the names of the first rank of model `m` with the prefix `key`."""
    os.environ["MOONCAKE_CONFIG_PATH"] = file
    prefix = PoolKey.build_prefix(KeyMetadata("m", 0, 0, 0, 0, cache_prefix="key"))
    return dataclasses.asdict(MooncakeStoreConfig.load_from_config()), prefix


def record_options(architectures: list[str]) -> dict[str, Any]:
    """The record, without the day on which it is made; of these architectures whether they take adapters."""
    script = runpy.run_path(str(Path(__file__).parents[1] / "scripts" / "record_vllm_options.py"))
    return {**script["record"](architectures), "read_on": ""}


MEDIA_MODELS = {
    "minimax_m3_vl": MiniMaxM3VLProcessingInfo,
    "qwen2_5_vl": Qwen2_5_VLProcessingInfo,
    "qwen3_vl": Qwen3VLProcessingInfo,
}

HANDLERS = {
    "options": record_options,
    "vllm": parse_engine_port,
    "vllm-router": parse_router_port,
    "planner": count_cache_tokens,
    "minimax": describe_minimax_cache,
    "compressed": count_compressed_tokens,
    "parameters": count_parameters,
    "algorithms": resolve_algorithms,
    "picture": describe_picture,
    "adapters": count_adapter_numbers,
    "kimi": count_kimi_tokens,
    "media": count_media_tokens,
    "run": run_program,
    "mooncake": load_mooncake_settings,
    "processes": count_frozen_objects,
}


def answer(line: str) -> dict[str, Any]:
    """Return the handler's result, or the exit status or message of a refusal."""
    handler, argument = json.loads(line)
    try:
        return {"result": HANDLERS[handler](argument)}
    except SystemExit as end:
        return {"refused": int(end.code or 0)}
    except (OSError, TypeError, ValueError) as error:
        return {"refused": str(error)}


# Any other output goes to standard error.
with os.fdopen(os.dup(1), "w") as out:
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(answer(line)), file=out, flush=True)
