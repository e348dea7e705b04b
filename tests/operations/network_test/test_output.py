from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from llm_serving.catalog import instances
from llm_serving.operations.network_test import output

PUBLISHED = Path(__file__).with_name("published")
P5 = instances.find("p5.48xlarge")
HEALTHY = (PUBLISHED / "p5-2-nodes.txt").read_text()


def test_a_published_run_of_two_p5_over_efa_is_healthy() -> None:
    verdict = output.judge(output.parse(HEALTHY), P5, efa=32)
    assert verdict == output.Verdict(17179869184, 487.09, 320.0, "Libfabric, provider efa", ())


def test_a_run_that_fell_back_to_tcp_is_refused_by_its_log() -> None:
    text = (PUBLISHED / "socket-fallback.txt").read_text()
    verdict = output.judge(output.parse(text), P5, efa=32)
    assert verdict.failures == (
        "NCCL fell back to Socket: it did not use EFA",
        "12.5 GB/s of bus bandwidth, and p5.48xlarge needs 320 to be healthy",
    )


def test_tcp_is_refused_also_where_the_bandwidth_is_high_enough() -> None:
    text = HEALTHY.replace("Using network Libfabric", "Using network Socket")
    assert output.judge(output.parse(text), P5, efa=32).failures == ("NCCL fell back to Socket: it did not use EFA",)


@pytest.mark.parametrize(
    ("old", "new", "failure"),
    [
        ("provider is efa", "provider is tcp", "libfabric used tcp instead of efa"),
        ("found 32 nics", "found 4 nics", "the containers have 4 EFA interfaces, and the instances have 32"),
        ("NCCL INFO Using network Libfabric", "", "NCCL's log does not name the network that it used"),
        (
            "479.28      0    33628  255.44  478.95      0",
            "479.28      3    33628  255.44  478.95      1",
            "4 elements came back wrong",
        ),
        ("487.09", "301.20", "301.2 GB/s of bus bandwidth, and p5.48xlarge needs 320 to be healthy"),
    ],
)
def test_each_sign_of_a_sick_network_is_refused(old: str, new: str, failure: str) -> None:
    assert old in HEALTHY
    assert output.judge(output.parse(HEALTHY.replace(old, new)), P5, efa=32).failures == (failure,)


def test_an_output_without_results_is_refused() -> None:
    failures = output.judge(output.parse("mpirun was unable to start\n"), P5, efa=32).failures
    assert failures[0] == "the program printed no result"


def test_a_type_whose_efa_does_not_reach_the_gpus_is_judged_by_its_log_alone() -> None:
    text = HEALTHY.replace("found 32 nics", "found 1 nics")
    verdict = output.judge(output.parse(text), instances.find("g6e.8xlarge"), efa=1)
    assert (verdict.min_gb_s, verdict.failures) == (None, ())


def test_every_published_result_is_healthy_by_our_floor() -> None:
    """A floor above what healthy instances reach would refuse them."""
    rows = instances.load()
    for result in yaml.safe_load((PUBLISHED / "results.yaml").read_text()):
        if result["type"] in rows:
            floor = output.compute_min_bandwidth(rows[result["type"]])
            assert floor is not None
            assert floor <= result["bus_gb_s"], result
