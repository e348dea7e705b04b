"""The parts of a start are read from the engine's own lines, those of its last start."""

from __future__ import annotations

import re

import pytest

from llm_serving.catalog import engines
from llm_serving.targets import starts
from tests import engines_own

# Lines of vLLM 0.32.0 on CPU, and below them as it writes them on GPUs.
STREAMED = """\
(APIServer pid=16706) INFO 11-26 11:09:57 [api_utils.py:286] non-default args: {'model_tag': 's3://models/tiny/'}
(EngineCore pid=19842) INFO 11-26 11:10:15 [base_loader.py:82] Initializing model took 2.637986 seconds
2026-11-26 11:10:16,684 [INFO] [RunAI Streamer] Overall time to stream 7.3 MiB of all files to cpu: 0.78s, 9.3 MiB/s
(EngineCore pid=19842) INFO 11-26 11:10:17 [core.py:402] init engine (profile, create kv cache, warmup model) took 0.32 s
INFO:     127.0.0.1:50768 - "POST /v1/chat/completions HTTP/1.1" 200 OK
"""
COPIED = """\
(APIServer pid=7) INFO 11-26 11:20:57 [api_utils.py:286] non-default args: {'model_tag': '/scratch/fetched/weights'}
(Worker_TP0 pid=9) INFO 11-26 11:21:12 [default_loader.py:500] Loading weights took 11.52 seconds
(Worker_TP1 pid=9) INFO 11-26 11:21:13 [default_loader.py:500] Loading weights took 12.01 seconds
(Worker_TP0 pid=9) INFO 11-26 11:21:13 [gpu_model_runner.py:5149] Model loading took 15.27 GiB memory and 14.251306 seconds
(EngineCore pid=8) INFO 11-26 11:21:59 [core.py:395] init engine (profile, create kv cache, warmup model) took 45.90 s (compilation: 31.40 s)
"""
# Lines of vLLM 0.25.1 on an H200, with random weights.
ON_A_GPU = """\
(APIServer pid=635) INFO 11-26 12:13:04 [api_utils.py:273] non-default args: {'model_tag': 'Qwen3-8B', 'max_model_len': 8192}
(EngineCore pid=849) INFO 11-26 12:13:50 [model_runner.py:302] Model loading took 15.27 GiB and 2.068296 seconds
(EngineCore pid=849) INFO 11-26 12:14:22 [monitor.py:53] torch.compile took 31.36 s in total
(EngineCore pid=849) INFO 11-26 12:14:47 [core.py:337] init engine (profile, create kv cache, warmup model) took 56.31 s (compilation: 31.36 s)
"""


def test_the_longest_line_of_ranks_and_parts_is_the_load() -> None:
    assert starts.read_log(STREAMED.splitlines(), "vllm") == (0.78, 0.32)
    assert starts.read_log(COPIED.splitlines(), "vllm") == (14.251306, 45.9)
    assert starts.read_log(ON_A_GPU.splitlines(), "vllm") == (2.068296, 56.31)


def test_a_log_of_several_starts_tells_of_the_last_alone() -> None:
    assert starts.read_log((COPIED + STREAMED).splitlines(), "vllm") == (0.78, 0.32)
    begun = COPIED + STREAMED.splitlines()[0]
    assert starts.read_log(begun.splitlines(), "vllm") == (None, None), "nothing is loaded yet"


def test_what_nobody_has_read_says_nothing() -> None:
    assert starts.read_log(COPIED.splitlines(), "") == (None, None)


@pytest.mark.engine
def test_the_engine_still_writes_these_lines() -> None:
    """The formats of its log lines, as its package has them."""
    package = next((engines_own.find_executables().parent / "lib").glob("python3*/site-packages/vllm"))
    sources = {
        "entrypoints/serve/utils/api_utils.py": ["non-default args: "],
        "model_executor/model_loader/default_loader.py": ["Loading weights took %.2f seconds"],
        "v1/worker/gpu_model_runner.py": ["Model loading took %s GiB memory and %.6f seconds"],
        "v1/engine/core.py": ["init engine (profile, create kv cache, warmup model) took ", "%.2f s"],
    }
    lines = engines.load_engines()["vllm"].start_lines
    assert lines
    for file, texts in sources.items():
        code = (package / file).read_text()
        assert all(text in code for text in texts), file
        line = "".join(re.sub(r"%(?:\.\d)?[sf]", "1.5", text) for text in texts)
        patterns = (lines.begins, lines.load, lines.compile)
        assert sum(bool(re.search(pattern, line)) for pattern in patterns) == 1, line
