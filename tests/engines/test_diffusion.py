"""Memory of pipelines: weights to the byte, and what a picture takes."""

from __future__ import annotations

import pytest

from llm_serving.catalog import instances, models
from llm_serving.engines import diffusion
from llm_serving.engines.memory import ReplicaSetup

FLUX = models.find("black-forest-labs/FLUX.1-schnell")
GIB = 2**30


def test_weights_are_those_of_all_parts_in_16_bits() -> None:
    assert FLUX.weight_bytes / GIB == pytest.approx(31.4, abs=0.05), "of the page that engines/diffusion.py names"
    assert sum(group.parameters for group in FLUX.list_tensors()) == FLUX.parameters == FLUX.weight_bytes // 2
    assert 2 * 11_891_178_560 + 149_568 == 23_782_506_688, "flux1-schnell.safetensors, with its header"


@pytest.mark.parametrize(
    ("type_", "fits"), [("g6.xlarge", False), ("g5.xlarge", False), ("g6e.xlarge", True), ("p5.48xlarge", True)]
)
def test_a_pipeline_fits_where_its_weights_and_a_picture_do(type_: str, fits: bool) -> None:
    fit = diffusion.compute_fit(FLUX, instances.find(type_), ReplicaSetup())
    assert fit.fits is fits
    assert bool(fit.why) is not fits
    assert fit.reserve_bytes > (33.9 - 31.4) * GIB, "the published peak of this model"
    assert diffusion.compute_fit(models.find("tiny-draw"), instances.find(type_), ReplicaSetup()).fits
