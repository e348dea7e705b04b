"""Every image that the repository names: pinned, known with its source, or of the fleet's own registry."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.constructs import sidecars
from llm_serving.catalog import engines, images

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "inference"
IMAGE_KEYS = ("image", "copier", "fleet_image")

REFERENCE = re.compile(
    r"(?<![\w/.-])(?:(?:public\.ecr\.aws|docker\.io|ghcr\.io|quay\.io|registry\.k8s\.io|nvcr\.io)/[a-z0-9./_-]+|vllm/[a-z0-9-]+)"
    r"(?::[A-Za-z0-9_][\w.-]*)?(?:@sha256:[0-9a-f]{64})?"
)
"""An image in a text: of a registry known by name, or of vLLM's own repositories on Docker Hub."""

MOVING_TAG = re.compile(r":(?:latest|main|master|nightly[\w.-]*|dev[\w.-]*)(?:@|$)")


def walk(value: Any) -> Iterator[str]:
    """Yield the images of a settings file by their keys."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key in IMAGE_KEYS and isinstance(item, str):
                yield item
            yield from walk(item)
    elif isinstance(value, list):
        for item in value:
            yield from walk(item)


def list_settings_images() -> Iterator[tuple[str, str]]:
    """Yield file and image of the catalog, the chart with its presets, the platform's table and Dockerfiles."""
    files = [
        *(ROOT / "src/llm_serving/catalog").rglob("*.yaml"),
        *(ROOT / "charts").glob("*.yaml"),
        CHART / "values.yaml",
        *(CHART / "presets").glob("*.yaml"),
    ]
    for file in files:
        for document in yaml.safe_load_all(file.read_text()):
            yield from ((str(file.relative_to(ROOT)), image) for image in walk(document))
    for dockerfile in (ROOT / "images").glob("*/Dockerfile"):
        for image in re.findall(r"(?m)^FROM (?:docker.io/)?(\S+)", dockerfile.read_text()):
            yield str(dockerfile.relative_to(ROOT)), image
    yield "src/llm_serving/catalog/images.py", images.pin(images.COPIER)
    yield "infra/constructs/sidecars.py", sidecars.IMAGE


def find_fault(image: str) -> str | None:
    """Say what is wrong with an image, if anything is."""
    if not image or image.startswith("{registry}/"):
        return None
    if MOVING_TAG.search(image):
        return "its tag moves or expires"
    reference, _, digest = image.partition("@")
    row = images.load().get(reference)
    if row is None:
        return "no row of images.yaml"
    if row.digest and digest != row.digest:
        return f"without the digest {row.digest}" if not digest else "another digest than images.yaml has"
    return None


def test_every_image_is_pinned_and_has_a_source() -> None:
    faults = {entry: find_fault(entry[1]) for entry in list_settings_images() if "catalog/engines" not in entry[0]}
    faults |= {
        (f"engine {name}", images.pin(image)): find_fault(images.pin(image))
        for name, engine in engines.load_engines().items()
        for image in (engine.image, engine.fleet_image, *(platform.image for platform in engine.platforms.values()))
    }
    assert len(faults) >= 10
    assert {entry: fault for entry, fault in faults.items() if fault} == {}


def test_no_text_of_the_product_names_an_image_that_moves_or_is_unknown() -> None:
    texts = [
        file
        for folder in ("src", "infra", "charts", "blueprints", "images")
        for file in (ROOT / folder).rglob("*")
        if file.is_file() and file.suffix in (".py", ".yaml", ".j2", ".tpl", ".md", "") and "tests" not in file.parts
    ]
    faults = {}
    for file in texts:
        for reference in REFERENCE.findall(file.read_text(encoding="utf-8")):
            is_image = ":" in reference and "charts/" not in reference
            named = reference.removeprefix("docker.io/").partition("@")[0]  # the catalog leaves Docker Hub's host out
            if is_image and (MOVING_TAG.search(reference) or named not in images.load()):
                faults[f"{file.relative_to(ROOT)}: {reference}"] = True
    # The chart's own example of an upgrade.
    assert list(faults) == ["charts/inference/README.md: vllm/vllm-openai:v0.32.1"]


@pytest.mark.parametrize(
    ("image", "fault"),
    [
        ("vllm/vllm-router:nightly-20260710-b93cbcb", "its tag moves or expires"),
        ("vllm/vllm-openai:latest", "its tag moves or expires"),
        ("quay.io/someone/else:1.0", "no row of images.yaml"),
        ("{registry}/router:0.1.17-15", None),
    ],
)
def test_what_the_walk_refuses(image: str, fault: str | None) -> None:
    assert find_fault(image) == fault


def test_an_image_by_tag_alone_is_refused_where_the_digest_is_known() -> None:
    tag = images.COPIER
    assert "without the digest" in (find_fault(tag) or "")
    assert find_fault(images.pin(tag)) is None


def test_no_source_is_of_the_future() -> None:
    assert all(date(2026, 1, 1) <= row.seen_on <= date.today() for row in images.load().values())
