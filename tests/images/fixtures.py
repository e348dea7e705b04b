"""The images of ours, built once for all tests that run them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from llm_serving.settings.errors import Unavailable
from tests.images import built
from tests.images.built import ImageRunner


@pytest.fixture(scope="session")
def image_runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImageRunner]:
    """Build all images of ours that this machine can; a test where it can build none is skipped."""
    if obstacle := built.find_obstacle():
        pytest.skip(f"no images: {obstacle}")
    try:
        runner = built.prepare(tmp_path_factory.mktemp("images"))
    except Unavailable as error:
        pytest.skip(f"no base for images: {error}")
    try:
        yield runner
    finally:
        runner.remove_containers()
