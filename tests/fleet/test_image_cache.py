"""Names of images in the fleet's cache."""

from __future__ import annotations

import pytest

from llm_serving.fleet import image_cache
from llm_serving.fleet.model import MAX_CACHED_FLEET_NAME, Fleet, ImageCache

REGISTRY = "123456789012.dkr.ecr.us-west-2.amazonaws.com"
SECRET = "arn:aws:secretsmanager:us-west-2:123456789012:secret:ecr-pullthroughcache/hub-AbCdEf"


def build_fleet(cache: ImageCache | None) -> Fleet:
    values = {"name": "demo", "region": "us-west-2", "zones": ["us-west-2a", "us-west-2b"], "image_cache": cache}
    return Fleet.model_validate({**values, "pools": {"general": {"types": "g6e.2xlarge", "size": "0..8"}}})


PREFIXES = image_cache.build_prefixes(build_fleet(ImageCache(docker_hub=SECRET, ghcr=SECRET)), REGISTRY)
DIGEST = f"@sha256:{'0' * 64}"


@pytest.mark.parametrize(
    ("image", "cached"),
    [
        ("vllm/vllm-openai:v0.32.0", "demo-hub/vllm/vllm-openai:v0.32.0"),
        ("docker.io/grafana/grafana:12.3.0", "demo-hub/grafana/grafana:12.3.0"),
        ("busybox:1.37", "demo-hub/library/busybox:1.37"),
        ("quay.io/prometheus/prometheus:v3.8.0", "demo-quay/prometheus/prometheus:v3.8.0"),
        ("registry.k8s.io/lws/lws:v0.10.0", "demo-k8s/lws/lws:v0.10.0"),
        ("ghcr.io/kedacore/keda:2.20.2", "demo-ghcr/kedacore/keda:2.20.2"),
        (f"public.ecr.aws/aws-cli/aws-cli:2.35.11{DIGEST}", f"demo-ecr/aws-cli/aws-cli:2.35.11{DIGEST}"),
    ],
)
def test_an_image_of_a_public_registry_is_pulled_by_the_cache(image: str, cached: str) -> None:
    assert image_cache.rewrite(image, PREFIXES) == f"{REGISTRY}/{cached}"


@pytest.mark.parametrize(
    "image", [f"{REGISTRY}/demo/router:0.1.17", "nvcr.io/nvidia/k8s-device-plugin:v0.19.2", "localhost:5000/a:1"]
)
def test_an_image_of_another_registry_keeps_its_name(image: str) -> None:
    assert image_cache.rewrite(image, PREFIXES) == image


def test_registries_that_ask_for_a_login_are_cached_with_one_alone() -> None:
    prefixes = image_cache.build_prefixes(build_fleet(ImageCache()), REGISTRY)
    assert set(prefixes) == {"public.ecr.aws", "registry.k8s.io", "quay.io"}
    assert image_cache.build_prefixes(build_fleet(None), REGISTRY) == {}


def test_the_longest_prefix_is_one_that_ecr_takes() -> None:
    assert max(len(row.suffix) for row in image_cache.UPSTREAMS) + 1 + MAX_CACHED_FLEET_NAME == 30
