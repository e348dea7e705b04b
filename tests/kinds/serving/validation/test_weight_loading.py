from __future__ import annotations

from pathlib import Path

from llm_serving.catalog import engines
from llm_serving.kinds.serving.validation.validate import parse_weight_loading
from llm_serving.services.models import Weights

_STREAMING = engines.load_engines()["vllm"].streaming
assert _STREAMING
_LINE = _STREAMING.log_line
_WEIGHTS = Weights(uri="s3://models/tiny/", loader="runai_streamer", bytes=1, random=False)


def _write_log(folder: Path, name: str, *reads: tuple[str, str]) -> Path:
    path = folder / f"{name}.log"
    lines = [
        f"INFO [RunAI Streamer] Overall time to stream {size} of all files to cpu: {s}s, 1 MiB/s" for size, s in reads
    ]
    path.write_text("\n".join(["starting", *lines, "serving"]))
    return path


def test_bytes_and_the_slowest_replicas_seconds_are_read(tmp_path: Path) -> None:
    logs = [_write_log(tmp_path, "a", ("11.5 MiB", "0.41")), _write_log(tmp_path, "b", ("11.5 MiB", "0.62"))]
    loading = parse_weight_loading(_WEIGHTS, logs, _LINE)
    assert (loading.source, loading.bytes, loading.seconds) == ("s3://models/tiny/", round(11.5 * 2**20), 0.62)


def test_a_replica_that_started_twice_counts_with_its_last_start(tmp_path: Path) -> None:
    loading = parse_weight_loading(_WEIGHTS, [_write_log(tmp_path, "a", ("1.0 GiB", "9.0"), ("1.0 GiB", "3.0"))], _LINE)
    assert (loading.bytes, loading.seconds) == (2**30, 3.0)


def test_logs_without_the_line_give_null(tmp_path: Path) -> None:
    loading = parse_weight_loading(_WEIGHTS, [_write_log(tmp_path, "a"), tmp_path / "none.log"], _LINE)
    assert (loading.bytes, loading.seconds) == (None, None)


def test_an_engine_that_logs_no_line_gives_null(tmp_path: Path) -> None:
    loading = parse_weight_loading(_WEIGHTS, [_write_log(tmp_path, "a", ("1.0 GiB", "9.0"))], "")
    assert (loading.bytes, loading.seconds) == (None, None)
