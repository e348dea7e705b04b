"""One engine process with tiers of cached prompts: asks prompts in turn, and prints what each answer took from a cache.

Runs in the engine's own Python, with settings as JSON: `model`, `folder` of the file tier, `listing` in its place, a URL
that lists the objects of a bucket, `parts`, the files or objects of a prompt, `steps`, and `connector`, the settings of a
connector other than the engine's own tiers. A step that is a number is a prompt of its own; `truncate` halves every file of
the tier, and `kill` ends the server beside this process, asks prompts 3 and 1, and then prompt 0 until a new server has it.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

KV_BYTES = 6_000_000
"""Of the engine's cache and of the memory tier: less than two prompts, so that three evict another from both."""

PROMPT_TOKENS, CHUNK_TOKENS = 1500, 128

RECOVERY_S = 300
"""Longest wait for a server that starts again, and for what threads of their own write."""


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

    answers: list[list[Any]] = []
    known: set[int] = set()
    for step in settings["steps"]:
        if step == "truncate":
            for file in _list_parts(folder):
                os.truncate(file, file.stat().st_size // 2)
        elif step == "kill":
            answers += _ask_without_server(ask)
        else:
            answers.append(ask(step))
            # The last one's may not be written before the next is asked.
            _wait_for_parts(settings, len(known) * settings["parts"])
            known.add(step)
    print(json.dumps({"answers": answers, "metrics": _read_metrics(engine)}))


def _wait_for_parts(settings: dict[str, Any], count: int) -> None:
    """Wait until the tier has so many files or objects: they are written while the engine answers other prompts."""
    deadline = time.monotonic() + RECOVERY_S
    while _count_parts(settings) < count:
        if time.monotonic() > deadline:
            raise SystemExit(f"{_count_parts(settings)} of {count} files or objects were written")
        time.sleep(0.05)


def _count_parts(settings: dict[str, Any]) -> int:
    if "listing" in settings:
        with urllib.request.urlopen(settings["listing"], timeout=60) as page:
            return int(page.read().count(b"<Key>"))
    return len(_list_parts(Path(settings["folder"])))


def _list_parts(folder: Path) -> list[Path]:
    """Return the tier's whole files: vLLM's are called .bin and LMCache's .data, once all is written."""
    return [path for path in folder.rglob("*") if path.suffix in (".bin", ".data")]


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


def _ask_without_server(ask: Any) -> list[list[Any]]:
    """Return the answers of two prompts while the server is gone, and the first of prompt 0 from one that is back.

    The server has answered that it lacks the first, and ends when it is to store it: nothing says that it is gone.
    """
    adapters: Any = importlib.import_module("lmcache.integration.vllm.vllm_multi_process_adapter")
    server, keeper = _find_server()
    adapter, store = adapters.LMCacheMPWorkerAdapter, adapters.LMCacheMPWorkerAdapter.submit_store_request

    def kill_and_store(*words: Any, **named: Any) -> None:
        adapter.submit_store_request = store
        os.kill(server, signal.SIGKILL)
        store(*words, **named)

    adapter.submit_store_request = kill_and_store
    os.kill(keeper, signal.SIGSTOP)  # or it starts another
    try:
        alone = [ask(3), ask(1)]
    finally:
        os.kill(keeper, signal.SIGCONT)
    return [*alone, _recover(ask)]


def _find_server() -> tuple[int, int]:
    """Return the processes of the server and of its parent, which is this process's child."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            process = int(folder.name)
            parent = _find_parent(process)
            if _find_parent(parent) == os.getpid():
                return process, parent
        except OSError:  # it ended meanwhile
            continue
    raise SystemExit("no server runs beside this process")


def _find_parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def _recover(ask: Any) -> list[Any]:
    """Return the first answer of prompt 0 that came from the server; two others evict it from the engine between."""
    deadline = time.monotonic() + RECOVERY_S
    while time.monotonic() < deadline:
        for number in (1, 2):
            ask(number)
        answer: list[Any] = ask(0)
        if answer[0]:
            return answer
        time.sleep(1)
    raise SystemExit("no prompt came from the server")


def _read_metrics(engine: Any) -> dict[str, float]:
    """Return the engine's own counters of what came from outside of its cache, of a tier by its name."""
    rows = [row for row in engine.get_metrics() if hasattr(row, "value")]
    wanted = [row for row in rows if "external_prefix_cache" in row.name or "kv_offload_tiering" in row.name]
    return {f"{row.name} {row.labels.get('tier', '')}".strip(): row.value for row in wanted}


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
