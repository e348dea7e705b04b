"""Made pictures of a load: what they are, and that each is another."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

import pytest

from llm_serving.services.traffic import Traffic
from llm_serving.settings.errors import InputError
from llm_serving.validation.drivers import job, registry
from llm_serving.validation.load import load, load_plan, pictures, prompts
from llm_serving.validation.load.driver_result import DriverResult
from llm_serving.validation.load.load import generate_prompts
from llm_serving.validation.load.load_plan import LoadPlan, Shard
from llm_serving.validation.load.prefix_overlap import PrefixOverlap
from llm_serving.validation.load.prompt import Prompt
from llm_serving.validation.statistics import soundness

COSTS = {"tiny": prompts.TokenCosts(2, {"the": 1, "of": 1}, picture=50)}


def _build_plan(nonce: str = "run", **traffic: Any) -> LoadPlan:
    images = {"count": "0..2", "width": 40, "height": 30}
    settings = {"users": 2, "requests": 20, "input_tokens": "8..16", "images": images, **traffic}
    return LoadPlan(
        url="http://127.0.0.1:1",
        models=("tiny",),
        traffic=Traffic.model_validate(settings),
        nonce=nonce,
        folder="/tmp",
    )


def _generate(plan: LoadPlan) -> list[Prompt]:
    return [prompt for prompt, _ in zip(generate_prompts(plan, "load", COSTS), range(20), strict=False)]


def _list_urls(generated: list[Prompt]) -> list[str]:
    contents = [prompt.messages[-1]["content"] for prompt in generated]
    return [part["image_url"]["url"] for parts in contents if isinstance(parts, list) for part in parts[1:]]


def _read_chunks(png: bytes) -> dict[bytes, bytes]:
    """The chunks of a PNG file, each with the checksum that it says."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    chunks, rest = {}, png[8:]
    while rest:
        (length,) = struct.unpack(">I", rest[:4])
        kind, data, checksum, rest = (
            rest[4:8],
            rest[8 : 8 + length],
            rest[8 + length : 12 + length],
            rest[12 + length :],
        )
        assert struct.pack(">I", zlib.crc32(kind + data)) == checksum
        chunks[kind] = data
    return chunks


@pytest.mark.parametrize(("width", "height"), [(640, 480), (16, 17), (301, 1)])
def test_a_picture_is_a_png_file_of_its_size(width: int, height: int) -> None:
    chunks = _read_chunks(pictures.make_png(width, height, "seed"))
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    assert struct.unpack(">IIBBBBB", chunks[b"IHDR"]) == (width, height, 8, 2, 0, 0, 0)
    assert len(zlib.decompress(chunks[b"IDAT"])) == height * (1 + 3 * width)
    assert pictures.make_png(width, height, "seed") == pictures.make_png(width, height, "seed")
    assert pictures.make_png(width, height, "seed") != pictures.make_png(width, height, "other")


def test_a_picture_has_about_as_many_bytes_as_a_photo() -> None:
    bits = 8 * len(pictures.make_png(640, 480, "seed")) / (640 * 480)
    assert 1.9 < bits < 2.4


def test_each_request_has_pictures_that_no_other_has_and_their_tokens() -> None:
    generated = _generate(_build_plan())
    urls = _list_urls(generated)
    assert len(set(urls)) == len(urls) > 10
    counts = [len(_list_urls([prompt])) for prompt in generated]
    assert set(counts) == {0, 1, 2}
    for prompt, count in zip(generated, counts, strict=True):
        assert prompt.asked_input == len(prompt.text.split()) + 1 + 50 * count
    assert not set(urls) & set(_list_urls(_generate(_build_plan(nonce="next run"))))
    assert urls == _list_urls(_generate(_build_plan()))


def test_pictures_change_neither_words_nor_lengths_of_a_load() -> None:
    texts = [prompt.text for prompt in _generate(_build_plan(images=None))]
    assert [prompt.text for prompt in _generate(_build_plan())] == texts


def test_several_processes_send_each_request_once() -> None:
    plan = _build_plan()
    shared = [generate_prompts(plan, "load", COSTS, Shard(index, 3)) for index in range(3)]
    assert [next(shared[number % 3]) for number in range(20)] == _generate(plan)


def test_shared_text_is_counted_without_pictures() -> None:
    overlap = PrefixOverlap()
    for prompt in _generate(_build_plan(input_tokens=400, shared_prefix="80%")):
        overlap.add(prompt)
    assert overlap.share == pytest.approx(0.72, abs=0.08)


def test_prompts_that_wait_hold_a_bounded_memory() -> None:
    large = {"count": 4, "width": 4096, "height": 4096}
    one_by_one = load._compute_queue_size(_build_plan(images=large).traffic)
    assert 1 <= one_by_one < 20
    assert load._compute_queue_size(_build_plan(images=None).traffic) == load.QUEUE_SIZE
    prompt = _generate(_build_plan())[0]
    most = pictures.estimate_bytes(_build_plan().traffic)
    assert len(json.dumps(prompt.messages)) < most + 1000


def test_a_server_that_counts_no_tokens_of_pictures_shows_nothing() -> None:
    traffic = _build_plan().traffic
    doubts = [
        soundness.find_lasting_doubts(traffic, DriverResult(picture_tokens=tokens), [], shared=None, cached=None)
        for tokens in (None, 64, 0)
    ]
    assert doubts[:2] == [[], []]
    assert doubts[2] == [
        "a picture has no tokens in the server's usage: the model may not see it; needs a server that counts them"
    ]


@pytest.mark.parametrize("name", ["guidellm", "vllm-bench", "inference-perf"])
def test_a_driver_of_text_refuses_pictures(name: str) -> None:
    plan = _build_plan(users=None, arrivals="5/s")
    with pytest.raises(
        InputError, match=r"traffic\.images: .+ its requests have text only\. Fix: remove images, use --driver"
    ):
        job.check(registry.load_driver(name), plan)


def test_aiperf_sends_our_requests_as_they_are_with_their_pictures() -> None:
    job.check(registry.load_driver("aiperf"), _build_plan(users=None, arrivals="5/s"))


def test_making_pictures_takes_processes() -> None:
    traffic = _build_plan(users=None, arrivals="200/s", images={"width": 1024, "height": 1024}).traffic
    assert load_plan.count_processes(traffic, 64) > load_plan.count_processes(
        traffic.model_copy(update={"images": None}), 64
    )
