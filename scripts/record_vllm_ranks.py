"""Record what one rank holds of each kind of model on each kind of GPU, as vLLM's own classes say.

    .venv/bin/python -m scripts.record_vllm_ranks TRITON

Asks scripts/vllm_without_gpu.py in the engine's environment, and writes tests/engines/data/vllm_ranks.json, against
which the arithmetic of memory is tested. TRITON is a folder with the package that torch's GPU build requires:
`pip install --target TRITON --no-deps triton==3.7.1`.
"""

from __future__ import annotations

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
from llm_serving.engines.memory import ReplicaSetup
from llm_serving.targets.local import engine_env

OUT = paths.ROOT / "tests" / "engines" / "data" / "vllm_ranks.json"
CONTEXT = 4096
LIMIT_S = 1800

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

SPLITS = (1, 2, 4, 8)

LEFT_OUT: Mapping[str, tuple[str, Any]] = {
    "activation_scheme": ("quant_method", "dynamic"),
    "activation_scale_ub": ("quant_method", 1200.0),
    "hc_eps": ("hc_mult", 1e-6),
    "index_topk": ("index_n_heads", 2048),
    "layernorm_epsilon": ("model_type", 1e-5),
    "norm_topk_prob": ("num_experts", True),
    "position_embedding_type": ("model_type", "absolute"),
    "rotary_dim": ("model_type", 64),
}
"""Keys of config.json that vLLM asks for and the catalog leaves out, since no memory follows from them: each with a key
that it stands beside, and a value."""

SHORTENED = ("nvidia/Qwen3-235B-A22B-NVFP4", "meta-llama/Llama-3.1-405B-Instruct-FP8")
"""Models whose list of modules in 16 bits the catalog shortens, so that vLLM does not know them."""


class Question(NamedTuple):
    model: str
    instance: str
    tensor: int


def list_questions() -> Iterator[Question]:
    """Yield one model for each architecture and form of weights, split as little as it fits, and as much."""
    rows = {(row.kind, row.quantization): name for name, row in models.load().items() if row.task != "draw"}
    for name in rows.values():
        for instance in CAPABILITIES:
            fitting = [ways for ways in SPLITS if _fits(models.find(name), instance, ways)]
            widest = fitting[-1:] if models.find(name).task == "generate" else []
            for ways in sorted({*fitting[:1], *widest}):
                yield Question(name, instance, ways)


def _fits(model: Model, instance: str, ways: int) -> bool:
    return vllm.compute_fit(model, instances.load()[instance], ReplicaSetup(ways, context=CONTEXT)).fits


def ask(questions: list[Question], instance: str, folder: Path, triton: str) -> list[dict[str, Any]]:
    """Return the answers to the questions of one instance type."""
    lines = []
    for question in questions:
        place = folder / question.model.replace("/", "--")
        place.mkdir(exist_ok=True)
        (place / "config.json").write_text(json.dumps(_complete(models.read_config(question.model))))
        words = ["--max-model-len", str(CONTEXT), "--tensor-parallel-size", str(question.tensor)]
        scheme = models.find(question.model).scheme
        words += ["--allow-deprecated-quantization"] if scheme and scheme.is_deprecated else []
        lines.append(json.dumps({"folder": str(place), "words": words}))
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
    return [json.loads(line) for line in result.stdout.splitlines()]


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
                    rows.append({**question._asdict(), **answer})
            print(f"{instance}: {len(asked)} asked", flush=True)
    OUT.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


if __name__ == "__main__":
    main()
