"""inference-perf (0.7.0: inference_perf/config, datagen/dataset/hf_sharegpt_datagen.py, its per-request report).

Its ShareGPT reader takes a file of conversations: our prompt, and an answer of as many words as tokens are asked for.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import yaml

from llm_serving.validation.drivers.base import Job, build_failure, build_sample
from llm_serving.validation.load.answer import Sample

_REPORTS = "reports"


def build_command(job: Job, executables: Path) -> list[str]:
    # It skips the first conversation.
    conversations = [("", 1), *((prompt.text, prompt.max_tokens) for prompt in job.prompts)]
    data = job.folder / "conversations.json"
    data.write_text(
        json.dumps(
            [
                {"conversations": [{"from": "human", "value": text}, {"from": "gpt", "value": "w " * tokens}]}
                for text, tokens in conversations
            ]
        )
    )
    config = job.folder / "config.yml"
    config.write_text(yaml.safe_dump(_build_config(job, data)))
    script = 'set -e; "$1" -c "$2"; mv reports/per_request_lifecycle_metrics.json "$3"'  # its reports' names are fixed
    return ["sh", "-c", script, "sh", str(executables / "inference-perf"), str(config), str(job.result)]


def _build_config(job: Job, data: Path) -> dict[str, Any]:
    traffic = job.plan.traffic
    if traffic.users:
        kind = "concurrent"
        stage: dict[str, float] = {"concurrency_level": traffic.users, "num_requests": len(job.prompts)}
        at_once = traffic.users
    else:
        rate = traffic.arrivals or 1.0
        kind = traffic.process
        stage = {"rate": rate, "duration": max(1, math.ceil(len(job.prompts) / rate))}
        at_once = len(job.prompts) + math.ceil(rate) + 1
    return {
        "api": {"type": "completion", "streaming": True},
        "data": {"type": "shareGPT", "path": str(data)},
        "load": {
            "type": kind,
            "stages": [stage],
            "num_workers": 1,
            "worker_max_concurrency": at_once,
            "worker_max_tcp_connections": at_once,
            "base_seed": traffic.seed,
            "request_timeout": traffic.deadline,
        },
        "server": {
            "type": "vllm", "model_name": job.plan.models[0], "base_url": job.plan.url,
            "ignore_eos": job.engine_dialect and all(prompt.exact for prompt in job.prompts),
        },
        "tokenizer": {"pretrained_model_name_or_path": str(job.tokenizer)},
        "report": {
            "request_lifecycle": {
                "per_request": True,
                "use_server_output_tokens": True,
                "per_request_fields": {"request": False, "response": False, "response_chunks": False},
            },
            "prometheus": None,
        },
        "storage": {"local_storage": {"path": str(job.folder / _REPORTS)}},
    }  # fmt: skip


def read_samples(job: Job) -> list[Sample]:
    rows = json.loads(job.result.read_text(encoding="utf-8"))
    return [_read_row(number, row) for number, row in enumerate(sorted(rows, key=lambda row: row["start_time"]))]


def _read_row(number: int, row: dict[str, Any]) -> Sample:
    start: float = row["start_time"]
    if row.get("error"):
        return build_failure(number, start, f"{row['error']['error_type']}: {row['error']['error_msg']}")
    response = row["info"]["response_metrics"]
    usage = response.get("server_usage") or {}
    return build_sample(
        number,
        start,
        times=[time - start for time in response["output_token_times"]],
        end=row["end_time"] - start,
        input_tokens=usage.get("prompt_tokens"),
        output_tokens=usage.get("completion_tokens") or response["output_tokens"],
    )
