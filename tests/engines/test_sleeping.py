"""What a sleeping engine is taken to keep covers all that others saw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llm_serving.catalog import engines
from llm_serving.catalog.engines import Sleeping
from llm_serving.engines.memory import GIB
from llm_serving.settings import own_yaml

SEEN: dict[str, Any] = own_yaml.read(Path(__file__).parent / "data/sleeping.yaml")


@pytest.fixture
def sleeping() -> Sleeping:
    row = engines.load_engines()["vllm"].platforms["gpu"].sleeping
    assert row
    return row


@pytest.mark.parametrize("is_split", [False, True])
def test_it_keeps_what_others_saw_and_not_twice_as_much(sleeping: Sleeping, is_split: bool) -> None:
    most = max(row["mib"] * 2**20 for row in SEEN["kept"] if row["split"] is is_split)
    counted = sleeping.split_accelerator_bytes if is_split else sleeping.accelerator_bytes
    assert most <= counted <= 2 * most


def test_the_host_holds_what_pinned_memory_is_rounded_up_to(sleeping: Sleeping) -> None:
    assert max(row["taken_gib"] / row["asked_gib"] for row in SEEN["pinned"]) <= sleeping.host_copies == 2


def test_an_accelerator_holds_what_is_laid_out_anew_while_it_loads(sleeping: Sleeping) -> None:
    for row in SEEN["loaded"]:
        assert 1 < row["most_gib"] / row["gib"] <= sleeping.load_copies[row["quantization"]]


def test_weights_are_copied_no_faster_than_others_saw(sleeping: Sleeping) -> None:
    assert all(row["gib"] * GIB / row["seconds"] >= sleeping.copy_bytes_s for row in SEEN["copied"])


def test_memory_of_the_host_is_counted_for_each_accelerator(sleeping: Sleeping) -> None:
    assert sleeping.compute_host_bytes(10 * GIB, 4) == 4 * (20 + 4) * GIB
