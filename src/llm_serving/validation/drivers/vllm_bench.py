"""`vllm bench serve`, from the engine's own environment (0.32: vllm/benchmarks/serve.py)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

from llm_serving.services.traffic import Traffic
from llm_serving.settings.document import Conflict
from llm_serving.validation.drivers.base import Driver, Job, build_failure, build_sample
from llm_serving.validation.load.answer import Sample


def _find_conflicts(traffic: Traffic) -> Iterator[Conflict]:
    if traffic.process == "constant":
        yield Conflict(("process",), "it spaces arrivals by a gamma distribution", "write process: poisson")
    if traffic.replays_times:
        yield Conflict(
            ("trace",), "it draws its own arrivals", "write arrivals: 20/s with the trace, or --driver aiperf"
        )


def _build_command(job: Job, executables: Path) -> list[str]:
    rows = job.write_rows(
        "prompts.jsonl", [{"prompt": prompt.text, "output_tokens": prompt.max_tokens} for prompt in job.prompts]
    )
    traffic = job.traffic
    backend = "openai-chat" if traffic.api == "chat" else "openai"
    concurrency = traffic.users or traffic.max_concurrency
    return [
        str(executables / "vllm"), "bench", "serve", "--backend", backend, "--base-url", job.url,
        "--endpoint", job.path, "--model", job.model, "--tokenizer", str(job.tokenizer),
        "--dataset-name", "custom", "--dataset-path", str(rows), "--custom-output-len", "-1", "--skip-chat-template",
        "--disable-shuffle", "--num-prompts", str(len(job.prompts)), "--seed", str(traffic.seed),
        "--request-rate", f"{traffic.arrivals:g}" if traffic.arrivals else "inf",
        "--burstiness", f"{traffic.burstiness:g}",
        *(["--max-concurrency", str(concurrency)] if concurrency else []),
        *(["--ignore-eos"] if job.engine_dialect and all(prompt.exact for prompt in job.prompts) else []),
        "--temperature", "0", "--disable-tqdm", "--percentile-metrics", "ttft,tpot,itl,e2el",
        "--save-result", "--save-detailed", "--result-dir", str(job.folder), "--result-filename", job.result.name,
    ]  # fmt: skip


def _read(job: Job) -> list[Sample]:
    data = json.loads(job.result.read_text(encoding="utf-8"))
    samples = []
    for number, error in enumerate(data["errors"]):
        start = data["start_times"][number]
        if error:
            samples.append(build_failure(number, start, error))
            continue
        gaps = data["itls"][number]
        times = list(accumulate([data["ttfts"][number], *gaps]))
        tokens = data["output_lens"][number]
        end = data["latencies"][number]
        samples.append(build_sample(number, start, times=times, end=end, input_tokens=None, output_tokens=tokens))
    return samples


DRIVER = Driver(
    name="vllm-bench",
    title="vllm bench serve",
    package="vllm",
    executable="vllm",
    clock="vllm bench serve sent it",
    build_command=_build_command,
    read=_read,
    find_conflicts=_find_conflicts,
    environment={
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        # It computes nothing, and starts in 6.0 CPU-seconds without torch's compiler, not 7.4 (engine_startup.py).
        "TORCH_COMPILE_DISABLE": "1",
    },
    notes=(
        "vllm bench serve does not measure input tokens: those that were asked for are shown. It has no deadline.",
        "vllm bench serve takes the first event for the first token, also one that only opens a chat.",
        "vllm bench serve counts an answer that breaks off with an error inside its stream.",
        "vllm bench serve counts a chunk as one token; the tokens of an answer are spread evenly over its chunks.",
    ),
)
