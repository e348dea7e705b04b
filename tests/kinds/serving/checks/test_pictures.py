"""Pictures in a blueprint's traffic: which models take them, and how much of the context they are."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from llm_serving.catalog import models
from llm_serving.kinds.serving import predicted_load
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.services.service import Service
from llm_serving.settings.errors import InputError
from tests.kinds.serving import resolving
from tests.kinds.serving.checks.test_engine_arguments import FLEET

VISION = "Qwen/Qwen2.5-VL-7B-Instruct"


def _resolve(
    folder: Path,
    images: str,
    extra: str = "",
    *,
    model: str = VISION,
    context: str = "2k",
    traffic: str = "",
    types: str = "g6e.2xlarge",
) -> ServingDeployment:
    blueprint = (
        f"name: mine\npattern: aggregated\nmodel: {model}\ncontext: {context}\nroles: {{worker: {{pool: small}}}}\n"
        f"traffic: {{users: 2, input_tokens: 32, output_tokens: 8, images: {images}{traffic}}}\nslo: {{}}\n{extra}"
    )
    return resolving.resolve_files(folder, blueprint, FLEET.replace("g6e.2xlarge", types), "eks")


REFUSALS = {
    "a text model": (
        {"model": "Qwen/Qwen3-8B"},
        'traffic.images: "640 x 480": Qwen/Qwen3-8B reads only text as vllm runs it. Fix: remove images, or use a model that '
        "sees, such as tiny-vision or Qwen/Qwen2.5-VL-7B-Instruct.",
    ),
    "more than the context": (
        {"traffic": ", turns: 5"},
        'traffic.images: "640 x 480": a request of this traffic takes up to 2290 tokens with '
        "Qwen/Qwen2.5-VL-7B-Instruct, 5 pictures of up to 418 each among them, and the context is 2000. Fix: set context: 2290 "
        "or more, or use smaller or fewer pictures.",
    ),
    "more than the engine is told to take": (
        {"traffic": ", turns: 2", "extra": "engine_arguments: {limit_mm_per_prompt: {image: 1}}\n"},
        'traffic.images.count: "1": a request of this traffic has up to 2 pictures, and limit_mm_per_prompt allows 1. '
        "Fix: set limit_mm_per_prompt: {image: 2} in engine_arguments, or use fewer pictures.",
    ),
    "an engine that is told to leave out what reads them": (
        {"extra": "engine_arguments: {language_model_only: true}\n"},
        'traffic.images: "640 x 480": Qwen/Qwen2.5-VL-7B-Instruct reads only text as vllm runs it. Fix: remove images, or '
        "language_model_only.",
    ),
    "completions": (
        {"traffic": ", api: completions"},
        "traffic.images: completions have text alone. Fix: write api: chat, or leave images out.",
    ),
    "a task without chats": (
        {"model": "Qwen/Qwen3-Embedding-0.6B", "extra": "task: embed\n"},
        "a request of the task embed has texts only. Fix: remove images.",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_pictures_that_cannot_be_sent_are_refused_at_their_line(tmp_path: Path, case: str) -> None:
    arguments, message = REFUSALS[case]
    with pytest.raises(InputError) as refusal:
        _resolve(tmp_path, "{count: 1, width: 640, height: 480}", **arguments)
    assert f"{tmp_path}/blueprint.yaml:6:" in str(refusal.value)
    assert message in str(refusal.value)


@pytest.mark.parametrize("role", ["", "worker"])
def test_a_limit_of_pictures_for_a_text_model_is_refused(tmp_path: Path, role: str) -> None:
    limit = "engine_arguments: {limit_mm_per_prompt: {image: 1}}"
    keys = (
        f"roles: {{worker: {{pool: small, {limit}}}}}\n" if role else f"roles: {{worker: {{pool: small}}}}\n{limit}\n"
    )
    blueprint = (
        f"name: mine\npattern: aggregated\nmodel: {{}}\ncontext: 2k\n{keys}"
        "traffic: {users: 2, input_tokens: 32, output_tokens: 8}\nslo: {}\n"
    )
    resolving.resolve_files(tmp_path, blueprint.replace("{}", VISION, 1), FLEET, "eks")
    with pytest.raises(InputError) as refusal:
        resolving.resolve_files(tmp_path, blueprint.replace("{}", "Qwen/Qwen3-8B", 1), FLEET, "eks")
    reason = "{image: 1}: Qwen/Qwen3-8B reads text only. Fix: remove limit_mm_per_prompt, or use a model that sees."
    key = "roles.worker.engine_arguments" if role else "engine_arguments"
    assert f"{key}.limit_mm_per_prompt: {reason}" in str(refusal.value)


def test_pictures_that_fit_are_counted_in_the_note_and_in_the_estimate(tmp_path: Path) -> None:
    deployment = _resolve(tmp_path, "{width: 640, height: 480}")
    assert f"A picture of 640 x 480 takes up to 418 of 2000 tokens with {VISION}." in deployment.notes
    text = deployment.model_copy(update={"traffic": deployment.traffic.model_copy(update={"images": None})})
    estimates = [predicted_load.predict_requests_per_s(each) for each in (deployment, text)]
    assert estimates[0] and estimates[1] and estimates[0] < estimates[1] / 2


def test_videos_take_memory_until_the_engine_is_told_to_refuse_them(tmp_path: Path) -> None:
    images, refused = "{width: 640, height: 480}", "engine_arguments: {limit_mm_per_prompt: {video: 0}}\n"
    [note] = [note for note in _resolve(tmp_path, images, context="32900").notes if "video" in note]
    assert note.endswith("{limit_mm_per_prompt: {video: 0}} refuses videos and gives this memory to the KV cache.")
    with pytest.raises(InputError, match=r"GB of it for a video.* Fix: set limit_mm_per_prompt: \{video: 0\} in eng"):
        _resolve(tmp_path, images, context="32900", types="g6.2xlarge")
    fitting = _resolve(tmp_path, images, refused, context="32900", types="g6.2xlarge")
    assert not [note for note in fitting.notes if "video" in note]


@pytest.mark.parametrize("framework", ["plain", "dynamo"])
def test_what_reads_pictures_takes_no_memory_where_the_engine_leaves_it_out(tmp_path: Path, framework: str) -> None:
    """Neither its weights nor the memory of a video: a model of 2026 that sees may serve text alone, under Dynamo too."""
    fleet = FLEET.replace("g6e.2xlarge", "g6.2xlarge")
    text = (
        f"name: mine\npattern: aggregated\nmodel: {VISION}\ncontext: 32900\nframework: {framework}\n"
        "roles: {worker: {pool: small}}\ntraffic: {users: 2, input_tokens: 32, output_tokens: 8}\nslo: {}\n"
    )
    with pytest.raises(InputError, match=r"it does not fit into 1 accelerator of the pool small"):
        resolving.resolve_files(tmp_path, text, fleet, "eks")
    extra = "engine_arguments: {language_model_only: true, limit_mm_per_prompt: {video: 0}}\n"
    deployment = resolving.resolve_files(tmp_path, text + extra, fleet, "eks")
    assert "--language-model-only" in deployment.workers[0].command
    assert not [note for note in deployment.notes if "picture" in note or "video" in note]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_each_accelerator_may_have_all_of_what_reads_pictures(tmp_path: Path, engine: str) -> None:
    """By default they split it. Qwen3-VL-32B's tower is 1.15 GB, of which two accelerators then have the other half too."""
    option = {"vllm": "mm_encoder_tp_mode: data", "sglang": "mm_enable_dp_encoder: true"}[engine]
    fleet = FLEET.replace("g6e.2xlarge", "g6e.12xlarge")
    text = (
        f"name: mine\npattern: aggregated\nmodel: Qwen/Qwen3-VL-32B-Instruct\ncontext: 250k\nengine: {engine}\n"
        "roles: {worker: {pool: small, accelerators: 2}}\n"
        "traffic: {users: 2, input_tokens: 32, output_tokens: 8}\nslo: {}\n"
    )

    def count_tokens(extra: str = "") -> int:
        with pytest.raises(InputError) as refusal:
            resolving.resolve_files(tmp_path, text + extra, fleet, "eks")
        found = re.search(r"the cache holds (\d+) tokens", str(refusal.value))
        assert found
        return int(found[1])

    assert count_tokens(f"engine_arguments: {{{option}}}\n") < count_tokens() - 4000


def test_the_tokens_of_a_picture_follow_from_its_size_where_the_model_says_so() -> None:
    def count(model: str, width: int, height: int) -> int:
        vision = models.find(model).vision
        assert vision
        return vision.count_tokens(width, height)

    assert count(VISION, 280, 560) == 10 * 20
    assert count(VISION, 4096, 4096) == 16_384  # of 21,609
    assert count("Qwen/Qwen3-VL-8B-Instruct", 32, 32) == 64
    assert count("mistralai/Mistral-Small-3.1-24B-Instruct-2503", 280, 560) == 20 * (10 + 1)
    assert count("google/gemma-3-4b-it", 16, 16) == count("google/gemma-3-4b-it", 4096, 4096) == 256


def test_without_hosts_requests_carry_their_pictures(tmp_path: Path) -> None:
    """An empty list would allow all hosts: `_assert_url_in_allowed_media_domains` of vLLM 0.32.0."""
    [worker] = _resolve(tmp_path, "{width: 640, height: 480}").workers
    assert _find_hosts(worker) == ("none.invalid",)
    assert worker.env["VLLM_MEDIA_URL_ALLOW_REDIRECTS"] == "0"


def test_pictures_come_from_the_hosts_that_the_blueprint_names_alone(tmp_path: Path) -> None:
    hosts = "media_hosts: [images.example.com, cdn.example.com]\n"
    [worker] = _resolve(tmp_path, "{width: 640, height: 480}", extra=hosts).workers
    assert _find_hosts(worker) == ("images.example.com", "cdn.example.com")
    assert worker.env["VLLM_MEDIA_URL_ALLOW_REDIRECTS"] == "0", "an allowed host could send the engine anywhere"
    with pytest.raises(InputError, match=re.escape('engine_arguments.allowed_media_domains: "a.example.com"')):
        extra = "engine_arguments: {allowed_media_domains: a.example.com}\n"
        _resolve(tmp_path, "{width: 640, height: 480}", extra=extra)


def _find_hosts(service: Service) -> tuple[str, ...]:
    words = service.command[service.command.index("--allowed-media-domains") + 1 :]
    return tuple(itertools.takewhile(lambda word: not word.startswith("--"), words))
