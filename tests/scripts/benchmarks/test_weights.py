"""The benchmark of streaming says how far the streamer is from the server, and how far the cores let it be."""

from __future__ import annotations

from scripts.benchmarks import weights
from scripts.benchmarks.weights import Times

RUNS = {
    "plain requests": [Times(1.0, 0.8), Times(0.5, 0.9), Times(1.0, 0.7)],
    "streamer alone": [Times(2.0, 4.0), Times(2.5, 3.0), Times(2.0, 4.0)],
    "streamed": [Times(4.0, to_answer_s=30.0)],
    "downloaded, then loaded": [Times(3.0, None, 25.0, 1_000_000_000)],
}


def test_medians_leave_out_what_a_side_does_not_do() -> None:
    assert weights.compute_median(RUNS["streamer alone"]) == Times(2.0, 4.0)
    assert weights.compute_median(RUNS["downloaded, then loaded"]) == Times(3.0, None, 25.0, 1_000_000_000)


def test_cpu_time_bounds_the_streamers_share_of_the_servers_rate() -> None:
    assert weights.describe_limit(RUNS, 1_000_000_000) == (
        "The streamer reaches 50% of the rate of plain requests. A GB takes 4.00 CPU-seconds, and 0.80 by plain requests, "
        "with the server: where the cores are the limit, 20% is the most."
    )


def test_each_side_has_its_row() -> None:
    assert weights.build_table(RUNS, 1_000_000_000).row_count == len(RUNS)
