"""One engine process with tiers of cached prompts: asks prompts in turn, and prints what each answer took from a cache.

Runs in the engine's own Python, with settings as JSON: `model`, `folder` of the file tier, `steps`, and `connector`, the
settings of a connector other than the engine's own tiers. A step that is a number is a prompt of its own; `truncate` halves
every file of the tier.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

KV_BYTES = 6_000_000
"""Of the engine's cache and of the memory tier: less than two prompts, so that three evict another from both."""

PROMPT_TOKENS, CHUNK_TOKENS = 1500, 128


def main(settings: dict[str, Any]) -> None:
    """Answer all steps."""
    from vllm import LLM, SamplingParams

    folder = Path(settings["folder"])
    engine = LLM(
        settings["model"],
        dtype=settings.get("dtype", "auto"),
        enforce_eager=True,
        distributed_executor_backend="uni",
        disable_log_stats=False,
        max_model_len=2048,
        kv_cache_memory_bytes=KV_BYTES,
        max_num_seqs=2,
        block_size=CHUNK_TOKENS,
        kv_transfer_config=settings.get("connector") or _build_tiers(folder),
    )

    def ask(number: int) -> list[Any]:
        tokens = [(number * 7919 + place * 104729) % 900 + 10 for place in range(PROMPT_TOKENS)]
        [output] = engine.generate(
            [{"prompt_token_ids": tokens}], SamplingParams(max_tokens=8, temperature=0), use_tqdm=False
        )
        return [output.num_cached_tokens, list(output.outputs[0].token_ids)]

    answers = []
    for step in settings["steps"]:
        if step == "truncate":
            for file in (path for path in folder.rglob("*") if path.is_file()):
                os.truncate(file, file.stat().st_size // 2)
        else:
            answers.append(ask(step))
    print(json.dumps({"answers": answers, "metrics": _read_metrics(engine)}))


def _build_tiers(folder: Path) -> dict[str, Any]:
    """Return the settings of the engine's own tiers."""
    import cpu_tiers

    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "spec_name": cpu_tiers.CpuTieringSpec.__name__,
            "spec_module_path": cpu_tiers.__name__,
            "cpu_bytes_to_use": KV_BYTES,
            "secondary_tiers": [{"type": "fs", "root_dir": str(folder)}],
        },
    }


def _read_metrics(engine: Any) -> dict[str, float]:
    """Return the engine's own counters of what came from outside of its cache, of a tier by its name."""
    rows = [row for row in engine.get_metrics() if hasattr(row, "value")]
    wanted = [row for row in rows if "external_prefix_cache" in row.name or "kv_offload_tiering" in row.name]
    return {f"{row.name} {row.labels.get('tier', '')}".strip(): row.value for row in wanted}


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
