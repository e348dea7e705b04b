"""Record what the fullest rank holds of each kind of model on each kind of GPU, as vLLM's own classes say.

    .venv/bin/python -m scripts.record_vllm_ranks TRITON

Asks scripts/vllm_without_gpu.py in the engine's environment, and writes tests/engines/data/vllm_ranks.json, against
which the arithmetic of memory is tested. TRITON is a folder with the package that torch's GPU build requires:
`pip install --target TRITON --no-deps triton==3.7.1`.
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
from llm_serving.engines import vllm
from llm_serving.engines.memory import ReplicaSetup, Split
from llm_serving.targets.local import engine_env

OUT = paths.ROOT / "tests" / "engines" / "data" / "vllm_ranks.json"
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

SPREAD = (
    Split(2, pipeline=4),
    Split(8, whole_experts=True),
    Split(data=8, whole_experts=True),
    Split(2, data=4, whole_experts=True),
    Split(4, data=2),
)
"""What is asked beside layers that are only split, of the generations of GPUs below."""

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
"""Keys of config.json that vLLM asks for and the catalog leaves out, since no memory follows from them: each with a key
that it stands beside, and a value."""

SHORTENED = ("nvidia/Qwen3-235B-A22B-NVFP4", "meta-llama/Llama-3.1-405B-Instruct-FP8")
"""Models whose list of modules in 16 bits the catalog shortens, so that vLLM does not know them."""


class Question(NamedTuple):
    model: str
    instance: str
    split: Split


def list_questions() -> Iterator[Question]:
    """Yield one model for each architecture and form of weights: split as little as it fits, as much, and spread."""
    rows = {(row.kind, row.quantization): name for name, row in models.load().items() if row.task != "draw"}
    for name in rows.values():
        model = models.find(name)
        for instance in CAPABILITIES:
            fitting = [Split(ways) for ways in WAYS if _fits(model, instance, Split(ways))]
            yield from (Question(name, instance, split) for split in fitting[:1])
            if model.task == "generate":
                spread = [split for split in SPREAD if instance in GENERATIONS and _is_spread(model, instance, split)]
                yield from (Question(name, instance, split) for split in (*fitting[1:][-1:], *spread))


def _is_spread(model: Model, instance: str, split: Split) -> bool:
    return (split.pipeline > 1 or model.experts > 0) and _fits(model, instance, split)


def _fits(model: Model, instance: str, split: Split) -> bool:
    setup = ReplicaSetup(**dataclasses.asdict(split), context=CONTEXT)
    return vllm.compute_fit(model, instances.load()[instance], setup).fits


def ask(questions: list[Question], instance: str, folder: Path, triton: str) -> list[dict[str, Any]]:
    """Return the answers to the questions of one instance type, of the fullest stage each."""
    lines = []
    for question in questions:
        place = folder / question.model.replace("/", "--")
        place.mkdir(exist_ok=True)
        (place / "config.json").write_text(json.dumps(_complete(models.read_config(question.model))))
        for stage in range(question.split.pipeline):
            rank = stage * question.split.tensor
            lines.append(json.dumps({"folder": str(place), "words": _list_words(question), "rank": rank}))
    device = instances.load()[instance].accelerators
    assert device
    python = paths.ROOT / engine_env.FOLDER / "bin" / "python"
    program = paths.ROOT / "scripts" / "vllm_without_gpu.py"
    result = subprocess.run(
        [python, program, CAPABILITIES[instance], str(round(device.memory_mib / 1024)), triton],
        input="\n".join(lines),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    answers = map(json.loads, result.stdout.splitlines())
    return [_merge(list(itertools.islice(answers, question.split.pipeline))) for question in questions]


def _list_words(question: Question) -> list[str]:
    split, scheme = question.split, models.find(question.model).scheme
    sizes = {"tensor": split.tensor, "pipeline": split.pipeline, "data": split.data}
    words = ["--max-model-len", str(CONTEXT)]
    for name, size in sizes.items():
        words += [f"--{name}-parallel-size", str(size)]
    words += ["--enable-expert-parallel"] if split.whole_experts else []
    return [*words, "--allow-deprecated-quantization"] if scheme and scheme.is_deprecated else words


def _merge(stages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the most of each number and all kernels; the first error where one ended."""
    failed = [stage for stage in stages if "error" in stage]
    if failed:
        return failed[0]
    most = {name: max(stage[name] for stage in stages) for name in ("weight_bytes", "token_bytes")}
    kernels = {name: sorted({row for stage in stages for row in stage[name]}) for name in ("attention", "experts")}
    return most | kernels


def _complete(config: Mapping[str, Any]) -> dict[str, Any]:
    nested = {key: _complete(value) if isinstance(value, Mapping) else value for key, value in config.items()}
    nested.pop("random_weights", None)
    return {**{key: value for key, (beside, value) in LEFT_OUT.items() if beside in nested}, **nested}


def main() -> None:
    questions = [question for question in list_questions() if question.model not in SHORTENED]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for instance in CAPABILITIES:
            asked = [question for question in questions if question.instance == instance]
            for question, answer in zip(asked, ask(asked, instance, Path(folder), sys.argv[1]), strict=True):
                if "error" in answer:
                    console.err.print(f"{question}: {answer['error']}", soft_wrap=True)
                else:
                    place = {"model": question.model, "instance": instance}
                    rows.append({**place, **dataclasses.asdict(question.split), **answer})
            print(f"{instance}: {len(asked)} asked", flush=True)
    OUT.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


if __name__ == "__main__":
    main()
