"""`vllm bench serve`, from the engine's own environment (0.32: vllm/benchmarks/serve.py)."""

from __future__ import annotations

import json
from itertools import accumulate
from pathlib import Path

from llm_serving.validation.drivers.base import Job, build_failure, build_sample
from llm_serving.validation.load.answer import Sample


def build_command(job: Job, executables: Path) -> list[str]:
    rows = job.write_rows(
        "prompts.jsonl", [{"prompt": prompt.text, "output_tokens": prompt.max_tokens} for prompt in job.prompts]
    )
    traffic = job.plan.traffic
    backend = "openai-chat" if traffic.api == "chat" else "openai"
    concurrency = traffic.users or traffic.max_concurrency
    return [
        str(executables / "vllm"), "bench", "serve", "--backend", backend, "--base-url", job.plan.url,
        "--endpoint", job.plan.path, "--model", job.plan.models[0], "--tokenizer", str(job.tokenizer),
        "--dataset-name", "custom", "--dataset-path", str(rows), "--custom-output-len", "-1", "--skip-chat-template",
        "--disable-shuffle", "--num-prompts", str(len(job.prompts)), "--seed", str(traffic.seed),
        "--request-rate", f"{traffic.arrivals:g}" if traffic.arrivals else "inf",
        "--burstiness", f"{traffic.burstiness:g}",
        *(["--max-concurrency", str(concurrency)] if concurrency else []),
        *(["--ignore-eos"] if job.engine_dialect and all(prompt.exact for prompt in job.prompts) else []),
        "--temperature", "0", "--disable-tqdm", "--percentile-metrics", "ttft,tpot,itl,e2el",
        "--save-result", "--save-detailed", "--result-dir", str(job.folder), "--result-filename", job.result.name,
    ]  # fmt: skip


def read_samples(job: Job) -> list[Sample]:
    report = json.loads(job.result.read_text(encoding="utf-8"))
    samples = []
    for number, error in enumerate(report["errors"]):
        # It waits for one of the requests at once to end, and times the answer from then on; its own loop is late too.
        queued_s = 0.0 if job.due is None else report["queue_times"][number]
        start = report["start_times"][number] - queued_s
        if error:
            samples.append(build_failure(number, start, error))
            continue
        times = list(accumulate([queued_s + report["ttfts"][number], *report["itls"][number]]))
        sample = build_sample(
            number,
            start,
            times=times,
            end=queued_s + report["latencies"][number],
            input_tokens=report["input_lens"][number],
            output_tokens=report["output_lens"][number],
        )
        samples.append(job.add_delay(sample, queued_s))
    return samples
