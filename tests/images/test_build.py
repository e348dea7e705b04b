"""The names of images: in their folders, in the catalog, and in the command that builds them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from llm_serving.catalog import engines
from llm_serving.fleet.model import Storage

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "images"
IMAGE_NAMES = sorted(path.parent.name for path in IMAGES.glob("*/Dockerfile"))


def _build(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(IMAGES / "build"), *words], capture_output=True, text=True, timeout=120, check=False)


def _list_image_versions() -> dict[str, str]:
    """Version by name of each image of the fleet's own registry, as the catalog has it."""
    rows = [row.fleet_image for row in engines.load_engines().values()]
    rows += [row.dns_discovery_image for row in engines.load_routers().values()]
    return dict(row.removeprefix("{registry}/").split(":", 1) for row in rows if row.startswith("{registry}/"))


def _read_label(name: str) -> str:
    text = (IMAGES / name / "Dockerfile").read_text()
    version: str = re.findall(r'org\.opencontainers\.image\.version="([^"]+)"', text)[0]
    return version


def test_every_image_of_the_catalogues_has_a_build_of_the_same_version() -> None:
    versions = _list_image_versions()
    assert set(versions) <= set(IMAGE_NAMES)
    assert versions == {name: _read_label(name) for name in versions}


def test_a_default_fleet_has_a_repository_for_every_image() -> None:
    assert set(Storage().repositories) == set(_list_image_versions()) == set(IMAGE_NAMES)


def test_the_fleet_image_extends_the_plain_image() -> None:
    base = re.findall(r"(?m)^FROM (\S+)$", (IMAGES / "vllm" / "Dockerfile").read_text())
    assert base == [engines.load_engines()["vllm"].image]


@pytest.mark.parametrize("name", IMAGE_NAMES)
def test_no_image_runs_as_root(name: str) -> None:
    users = re.findall(r"(?m)^USER (\S+)$", (IMAGES / name / "Dockerfile").read_text())
    assert users[-1].split(":")[0] not in ("0", "root")


def test_the_build_pushes_to_the_fleets_own_registry_by_the_name_that_deployments_pull() -> None:
    printed = _build("vllm", "--fleet", "infra/fleets/one-gpu.yaml", "--print")
    assert printed.returncode == 0, printed.stderr
    registry = "ACCOUNT.dkr.ecr.us-east-1.amazonaws.com"
    assert printed.stderr.splitlines()[-2:] == [
        f"  $ aws ecr get-login-password --region us-east-1 | docker login --username AWS --password-stdin {registry}",
        f"  $ docker buildx build --platform linux/amd64 --tag {registry}/one-gpu/vllm:{_list_image_versions()['vllm']} --push images/vllm",
    ]


def test_a_missing_image_is_refused_with_the_existing_ones() -> None:
    result = _build("vllmm", "--print")
    assert result.returncode == 2
    assert result.stderr.startswith("NAME: now vllmm: there is no images/vllmm/Dockerfile. Fix: one of: ")
    assert all(f"{name}/" in result.stderr for name in IMAGE_NAMES)


@pytest.mark.parametrize("name", IMAGE_NAMES)
def test_every_file_that_a_dockerfile_copies_exists(name: str) -> None:
    copied = re.findall(r"(?m)^COPY (?:--\S+ )*(.+) \S+$", (IMAGES / name / "Dockerfile").read_text())
    assert copied
    missing = [file for line in copied for file in line.split() if not (IMAGES / name / file).is_file()]
    assert missing == []
