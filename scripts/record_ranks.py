"""Record what the fullest rank holds of each kind of model on each kind of GPU, as an engine's own classes say.

    .venv/bin/python -m scripts.record_ranks ENGINE FOLDER

ENGINE is vllm or sglang. Asks scripts/ENGINE_without_gpu.py in vLLM's environment, and writes
tests/engines/data/ENGINE_ranks.json, against which the arithmetic of memory is tested. FOLDER has the packages that the
environment lacks: `pip install --target FOLDER --no-deps triton==3.7.1`, and for SGLang `sglang==0.5.23 gguf==0.19.0
xxhash==4.1.0 timm==1.0.25` as well.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from llm_serving import console, paths
from llm_serving.catalog import instances, models
from llm_serving.catalog.models import Model
from llm_serving.engines import base
from llm_serving.engines.memory import ReplicaSetup, Split
from llm_serving.targets.local import engine_env

CONTEXT = 4096
LIMIT_S = 3600

CAPABILITIES = {
    "p4d.24xlarge": "8.0",
    "g5.48xlarge": "8.6",
    "g6.48xlarge": "8.9",
    "g6e.48xlarge": "8.9",
    "p5.48xlarge": "9.0",
    "p5en.48xlarge": "9.0",
    "p6-b200.48xlarge": "10.0",
    "p6-b300.48xlarge": "10.3",
    "g7e.48xlarge": "12.0",
}
"""Compute capability of the GPUs of types. Source: developer.nvidia.com/cuda-gpus, read 2026-11-28."""

WAYS = (1, 2, 4, 8)

SPREAD = {
    "vllm": (
        Split(2, pipeline=4),
        Split(8, whole_experts=True),
        Split(data=8, whole_experts=True),
        Split(2, data=4, whole_experts=True),
        Split(4, data=2),
    ),
    "sglang": (Split(2, pipeline=4), Split(8, whole_experts=True)),
}
"""What is asked beside layers that are only split, of the generations of GPUs below."""

PHASED = {"sglang": ("google/gemma-3-27b-it", "Qwen/Qwen3-235B-A22B-FP8", "deepseek-ai/DeepSeek-V3.1")}
"""Models whose prefill and decode are asked for apart, with eight ways."""

GENERATIONS = ("p4d.24xlarge", "p5en.48xlarge", "p6-b200.48xlarge")

LEFT_OUT: Mapping[str, tuple[str, Any]] = {
    "activation_scale_ub": ("quant_method", 1200.0),
    "activation_scheme": ("quant_method", "dynamic"),
    "compress_rope_theta": ("hc_mult", 160000),
    "hc_eps": ("hc_mult", 1e-6),
    "hc_sinkhorn_iters": ("hc_mult", 20),
    "hidden_act": ("hc_mult", "silu"),
    "img_token_compression_config": ("num_channels", {}),
    "index_topk": ("index_n_heads", 2048),
    "layer_norm_eps": ("num_channels", 1e-5),
    "layernorm_epsilon": ("model_type", 1e-5),
    "norm_topk_prob": ("model_type", True),
    "position_embedding_type": ("model_type", "absolute"),
    "rms_norm_eps": ("model_type", 1e-6),
    "rotary_dim": ("model_type", 64),
    "scoring_func": ("num_local_experts", "sigmoid"),
    "sliding_window_size": ("swa_num_key_value_heads", 128),
    "sparse_topk_blocks": ("sparse_block_size", 16),
    "swa_head_dim": ("swa_num_key_value_heads", 192),
    "swa_num_attention_heads": ("swa_num_key_value_heads", 64),
    "swa_v_head_dim": ("swa_num_key_value_heads", 128),
    "swiglu_limit": ("hc_mult", 10.0),
}
"""Keys of config.json that engines ask for and the catalog leaves out, since no memory follows from them: each with a
key that it stands beside, and a value."""

LEFT_OUT_OF = {
    "vllm": LEFT_OUT,
    "sglang": {
        **LEFT_OUT,
        "architectures": ("n_routed_experts", ["DeepseekV3ForCausalLM"]),
        "moe_layer_freq": ("n_routed_experts", 1),
        "n_group": ("n_routed_experts", 1),
        "rope_scaling": ("hc_mult", {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536}),
        "routed_scaling_factor": ("n_routed_experts", 1.0),
        "scoring_func": ("hidden_size", "sigmoid"),
        "topk_group": ("n_routed_experts", 1),
        "topk_method": ("n_routed_experts", "noaux_tc"),
    },
}

SHORTENED = ("nvidia/Qwen3-235B-A22B-NVFP4", "meta-llama/Llama-3.1-405B-Instruct-FP8")
"""Models whose list of modules in 16 bits the catalog shortens, so that engines do not know them."""


class Question(NamedTuple):
    model: str
    instance: str
    split: Split
    phase: str = ""


def list_questions(engine: str) -> Iterator[Question]:
    """Yield one model for each architecture and form of weights: split as little as it fits, as much, and spread."""
    rows = {(row.kind, row.quantization): name for name, row in models.load().items() if row.task != "draw"}
    for name in rows.values():
        model = models.find(name)
        for instance in CAPABILITIES:
            fitting = [Split(ways) for ways in WAYS if _fits(engine, model, instance, Split(ways))]
            yield from (Question(name, instance, split) for split in fitting[:1])
            if model.task == "generate":
                spread = [split for split in SPREAD[engine] if _is_spread(engine, model, instance, split)]
                yield from (Question(name, instance, split) for split in (*fitting[1:][-1:], *spread))
    for name, instance, phase in itertools.product(PHASED.get(engine, ()), CAPABILITIES, ("prefill", "decode")):
        if _fits(engine, models.find(name), instance, Split(WAYS[-1])):
            yield Question(name, instance, Split(WAYS[-1]), phase)


def _is_spread(engine: str, model: Model, instance: str, split: Split) -> bool:
    is_asked = instance in GENERATIONS and (split.pipeline > 1 or model.experts > 0)
    return is_asked and _fits(engine, model, instance, split)


def _fits(engine: str, model: Model, instance: str, split: Split) -> bool:
    setup = ReplicaSetup(**dataclasses.asdict(split), context=CONTEXT)
    return base.get_memory_model(engine).compute_fit(model, instances.load()[instance], setup).fits


def ask(engine: str, questions: list[Question], instance: str, place: Path, packages: str) -> list[dict[str, Any]]:
    """Return the answers to the questions of one instance type, of the fullest stage each."""
    lines = []
    for question in questions:
        folder = place / question.model.replace("/", "--")
        folder.mkdir(exist_ok=True)
        config = _complete(models.read_config(question.model), LEFT_OUT_OF[engine])
        (folder / "config.json").write_text(json.dumps(config))
        words = LIST_WORDS[engine](question)
        for stage in range(question.split.pipeline):
            rank = stage * question.split.tensor
            lines.append(json.dumps({"folder": str(folder), "words": words, "rank": rank}))
    device = instances.load()[instance].accelerators
    assert device
    python = paths.ROOT / engine_env.FOLDER / "bin" / "python"
    gpu = (CAPABILITIES[instance], str(round(device.memory_mib / 1024)))
    result = subprocess.run(
        [python, "-m", f"scripts.{engine}_without_gpu", *gpu, packages],
        input="\n".join(lines),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=LIMIT_S,
        cwd=paths.ROOT,
        check=True,
    )
    answers = map(json.loads, result.stdout.splitlines())
    return [_merge(list(itertools.islice(answers, question.split.pipeline))) for question in questions]


def _list_vllm_words(question: Question) -> list[str]:
    split, model = question.split, models.find(question.model)
    sizes = {"tensor": split.tensor, "pipeline": split.pipeline, "data": split.data}
    words = ["--max-model-len", str(CONTEXT)]
    for name, size in sizes.items():
        words += [f"--{name}-parallel-size", str(size)]
    words += ["--enable-expert-parallel"] if split.whole_experts else []
    return [*words, "--allow-deprecated-quantization"] if model.scheme and model.scheme.is_deprecated else words


def _list_sglang_words(question: Question) -> list[str]:
    split = question.split
    words = ["--context-length", str(CONTEXT), "--tp-size", str(split.tensor), "--pp-size", str(split.pipeline)]
    words += ["--ep-size", str(split.tensor)] if split.whole_experts else []
    words += ["--disaggregation-mode", question.phase] if question.phase else []
    return [*words, "--enable-multimodal"] if models.find(question.model).vision else words


LIST_WORDS = {"vllm": _list_vllm_words, "sglang": _list_sglang_words}


def _merge(stages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the most of each number, the least of what has room, and all kernels; an error where one ended."""
    failures = [stage for stage in stages if "error" in stage]
    if failures:
        return failures[0]
    return {
        name: sorted({row for stage in stages for row in stage[name]})
        if isinstance(value, list)
        else (min if name in ("tokens", "requests") else max)(stage[name] for stage in stages)
        for name, value in stages[0].items()
    }


def _complete(config: Mapping[str, Any], left_out: Mapping[str, tuple[str, Any]]) -> dict[str, Any]:
    nested = {key: _complete(value, left_out) if isinstance(value, Mapping) else value for key, value in config.items()}
    nested.pop("random_weights", None)
    return {**{key: value for key, (beside, value) in left_out.items() if beside in nested}, **nested}


def main() -> None:
    engine, packages = sys.argv[1:]
    questions = [question for question in list_questions(engine) if question.model not in SHORTENED]
    rows = []
    with tempfile.TemporaryDirectory() as place:
        for instance in CAPABILITIES:
            of_instance = [question for question in questions if question.instance == instance]
            for question, answer in zip(
                of_instance, ask(engine, of_instance, instance, Path(place), packages), strict=True
            ):
                if "error" in answer:
                    console.err.print(f"{question}: {answer['error']}", soft_wrap=True)
                else:
                    about = {"model": question.model, "instance": instance}
                    about |= {"phase": question.phase} if question.phase else {}
                    rows.append({**about, **dataclasses.asdict(question.split), **answer})
            print(f"{instance}: {len(of_instance)} asked", flush=True)
    ranks_file = paths.ROOT / "tests" / "engines" / "data" / f"{engine}_ranks.json"
    ranks_file.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


if __name__ == "__main__":
    main()
