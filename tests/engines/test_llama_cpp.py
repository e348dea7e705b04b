"""llama.cpp's arithmetic compared with what llama-server logs when it starts, and its fit on pools of CPUs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rich.console import Console

from llm_serving import processes
from llm_serving.catalog import engines, gguf, instances, models
from llm_serving.engines import base, llama_cpp, memory
from llm_serving.engines.memory import ReplicaSetup
from llm_serving.hub import make_gguf
from llm_serving.tables import fit_table
from llm_serving.targets.local import engine_setups

MIB = 2**20
SERVER_LIMIT_S = 60


def _read_start(model: Path, slots: int, context: int, *options: str) -> str:
    """The log of a start, up to where it listens."""
    [port] = processes.claim_free_ports(1)
    command = [str(engine_setups.find("llama.cpp").executables / "llama-server"), "--model", str(model)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--parallel", str(slots), "--no-kv-unified", "--offline"]
    command += ["--ctx-size", str(slots * context), "--threads", "1", "--cache-ram", "0", "--log-verbosity", "4"]
    command += options
    log = model.with_name("server.log")
    with log.open("wb") as output:
        server = processes.spawn(command, cwd=model.parent, output=output)
    try:
        processes.wait_until(lambda: "listening on" in log.read_text(), "llama-server", SERVER_LIMIT_S)
    finally:
        processes.stop(server)
    return log.read_text()


def _parse_mib(log: str, buffer: str) -> list[float]:
    """Sizes of a kind of buffer: repacked weights have several."""
    return [float(size) for size in re.findall(rf"{buffer} buffer size = +([\d.]+) MiB", log)]


@pytest.mark.engine
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("quantization", "slots", "context"), [("BF16", 4, 2048), ("Q8_0", 1, 8192), ("Q4_0", 3, 2000)]
)
def test_weights_cache_and_buffers_are_what_the_server_logs(
    quantization: make_gguf.Quantization, slots: int, context: int, tmp_path: Path
) -> None:
    folder = make_gguf.make("tiny", tmp_path / "tiny", quantization=quantization)
    log, model = _read_start(folder / gguf.FILE, slots, context), models.find(str(folder))
    weights, cache_bytes = _parse_mib(log, "model"), llama_cpp.compute_cache_bytes(model, slots, context)
    # With AMX a block of 32 numbers in Q8_0 has 4 bytes more beside its 34.
    added = sum(_parse_mib(log, "AMX model")) * 4 / 38 if quantization == "Q8_0" else 0
    # Each size has two digits.
    assert sum(weights) == pytest.approx(model.weight_bytes / MIB + added, abs=0.0051 * len(weights))
    assert _parse_mib(log, "KV") == pytest.approx([cache_bytes / MIB], abs=0.0051)
    buffer_bytes = llama_cpp.compute_buffer_bytes(model, context)
    assert _parse_mib(log, "compute") == pytest.approx([buffer_bytes / MIB], rel=0.01)
    assert cache_bytes != llama_cpp.compute_cache_bytes(model, slots + 1, context)


@pytest.mark.engine
@pytest.mark.timeout(180)
@pytest.mark.parametrize("context", [512, 4096])
def test_a_text_to_embed_is_one_step_whose_buffers_are_what_the_server_logs(context: int, tmp_path: Path) -> None:
    folder = make_gguf.make("tiny-embed", tmp_path / "tiny-embed")
    row = engines.load_engines()["llama.cpp"].options["pooled"]
    options = [word.replace("{context}", str(context)) for word in row.arguments]
    log, model = _read_start(folder / gguf.FILE, 2, context, *options), models.find(str(folder))
    buffer_bytes = llama_cpp.compute_buffer_bytes(model, context)
    assert _parse_mib(log, "compute") == pytest.approx([buffer_bytes / MIB], rel=0.01)
    text = model.model_copy(update={"pooled": False})
    assert (llama_cpp.compute_buffer_bytes(text, context) < buffer_bytes) == (context > llama_cpp.STEP_TOKENS)


def test_a_model_fits_where_weights_slots_and_buffers_do() -> None:
    model, memory_model = models.find("bartowski/Qwen_Qwen3-8B-GGUF:Q8_0"), base.get_memory_model("llama.cpp")
    fit = memory_model.compute_fit(model, instances.find("m8g.xlarge"), ReplicaSetup(1, context=4096))
    assert fit.fits and fit.weight_bytes == 8_710_000_000
    # 36 layers, 8 heads of 128 numbers, keys and values, 16 bits: 147,456 bytes a token.
    assert fit.cache_tokens == fit.cache_bytes // 147_456
    too_small = memory_model.compute_fit(model, instances.find("m8g.large"), ReplicaSetup(1, context=4096))
    assert not too_small.fits
    assert too_small.why == (
        "weights 8.71 GB, 4 slots of 4096 tokens with 2.42 GB and buffers are 4.03 GB more than the 7.3 GB that a replica "
        "may take of m8g.large"
    )


def test_tokens_a_second_are_the_bandwidth_over_what_a_token_reads() -> None:
    model, instance = models.find("bartowski/Qwen_Qwen3-8B-GGUF:Q8_0"), instances.find("m8g.24xlarge")
    assert instance.memory_gb_s == pytest.approx(536.7), "96 vCPUs are a whole socket"
    estimate = memory.estimate_tokens_per_s(model, instance.memory_gb_s or 0, 8192)
    # A token looks one row of the embedding up: 151,936 rows of 4,096 numbers of 8.19 billion are not read.
    read_share = 1 - 151_936 * 4096 / model.parameters
    assert estimate == pytest.approx(536.7e9 / (8.71e9 * read_share + 4096 * 147_456))
    half = instances.find("m8g.12xlarge").memory_gb_s
    assert half == pytest.approx(536.7 / 2)


def test_fit_shows_types_without_accelerators_with_their_speed_and_no_others() -> None:
    rows = {name: instances.find(name) for name in ("g6e.2xlarge", "m8g.large", "m8g.4xlarge")}
    model = models.find("bartowski/Qwen_Qwen3-8B-GGUF:Q8_0")
    fits = fit_table.compute(model, rows.values(), ReplicaSetup(context=8000))
    assert fits["g6e.2xlarge"] == [], "the engine has no build for GPUs here"
    console = Console(width=100, no_color=True)
    with console.capture() as capture:
        console.print(fit_table.render(model, rows, fits, 8000, "auto"))
    lines = capture.get().splitlines()
    assert [line.split() for line in lines if "m8g" in line] == [
        ["m8g.large", "11", "too", "small"],
        ["m8g.4xlarge", "89", "42", "10.4"],
    ]
    assert any("at most, of one request: memory bandwidth / (weights that a token reads" in line for line in lines)
    safetensors = fit_table.compute(models.find("Qwen/Qwen3-8B"), rows.values(), ReplicaSetup(context=8000))
    assert {name: [fit.fits for fit in found] for name, found in safetensors.items()} == {
        "g6e.2xlarge": [True], "m8g.large": [False], "m8g.4xlarge": [True],
    }, "vLLM's"  # fmt: skip
