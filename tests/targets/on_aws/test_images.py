"""The images that a deployment needs in the fleet's registry, with a fake of ECR."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from llm_serving import paths
from llm_serving.catalog import own_image
from llm_serving.fleet.model import Fleet
from llm_serving.operations import image_pins
from llm_serving.settings.errors import CheckFailed
from llm_serving.targets import planning
from llm_serving.targets.eks import helm, release
from llm_serving.targets.on_aws import images
from llm_serving.targets.on_aws.aws_target import load_aws_target

REGISTRY = "123456789012.dkr.ecr.us-west-2.amazonaws.com/demo"


class Ecr:
    """A registry with some images."""

    def __init__(self, *existing: str) -> None:
        self.existing = existing
        self.requests: list[str] = []
        self.missing_code = "ImageNotFoundException"

    def describe_images(self, *, repositoryName: str, imageIds: list[dict[str, str]]) -> None:  # noqa: N803
        [[(field, value)]] = [identifier.items() for identifier in imageIds]
        self.requests.append(f"{repositoryName}{'@' if field == 'imageDigest' else ':'}{value}")
        if self.requests[-1] not in self.existing:
            raise ClientError({"Error": {"Code": self.missing_code}}, "DescribeImages")

    def get_paginator(self, _: str) -> Any:
        return SimpleNamespace(paginate=lambda **_: SimpleNamespace(build_full_result=lambda: {"imageDetails": []}))


def build_plan(ecr: Ecr) -> Any:
    return SimpleNamespace(
        deployment=SimpleNamespace(
            door=None,
            environment=SimpleNamespace(registry=REGISTRY, image_digests={}),
            services=[SimpleNamespace(image=f"{REGISTRY}/router:0.1.17-15")],
        ),
        aws=SimpleNamespace(client=lambda _: ecr),
        fleet=SimpleNamespace(value=SimpleNamespace(name="demo", account=None), path=Path("fleet.yaml")),
    )


def test_a_deployment_pulls_by_the_fleets_image_cache() -> None:
    fleet = Fleet.model_validate(
        {
            "name": "demo",
            "region": "us-west-2",
            "zones": ["us-west-2a", "us-west-2b"],
            "image_cache": {},
            "pools": {"general": {"types": "g6e.2xlarge", "size": "0..8"}},
        }
    )
    environment = load_aws_target("eks").build_environment(fleet, "123456789012")
    assert environment.image_prefixes["quay.io"] == f"{REGISTRY}-quay"
    assert "docker.io" not in environment.image_prefixes, "it asks for a login"


def test_only_images_of_the_fleets_own_registry_are_looked_up() -> None:
    ecr = Ecr("demo/router:0.1.17-15")
    images.require_images(build_plan(ecr), [f"{REGISTRY}/router:0.1.17-15", "vllm/vllm-openai:v0.32.0"])
    assert ecr.requests == ["demo/router:0.1.17-15"]


def test_a_missing_image_is_refused_with_the_command_that_builds_it() -> None:
    with pytest.raises(CheckFailed) as error:
        images.require_images(build_plan(Ecr()), [f"{REGISTRY}/router:0.1.17-15"])
    assert str(error.value) == (
        f"{REGISTRY}/router:0.1.17-15 is not in the fleet's registry. Nothing was changed. "
        "Fix: run images/build router --fleet fleet.yaml"
    )


def test_a_registry_without_the_repository_is_refused_with_the_stack_that_creates_it() -> None:
    ecr = Ecr()
    ecr.missing_code = "RepositoryNotFoundException"
    with pytest.raises(CheckFailed) as error:
        images.require_images(build_plan(ecr), [f"{REGISTRY}/router:0.1.17-15"])
    assert str(error.value) == (
        f"{REGISTRY}/router:0.1.17-15 is not in the fleet's registry, which has no repository for it. Nothing was changed. "
        "Fix: add router to storage.repositories of fleet.yaml, apply the stack storage, and run images/build router "
        "--fleet fleet.yaml"
    )


def test_an_image_pinned_by_its_build_is_looked_up_and_refused_by_its_digest() -> None:
    image, ecr = f"{REGISTRY}/router:0.1.17-15@sha256:{'1' * 64}", Ecr(f"demo/router@sha256:{'1' * 64}")
    images.require_images(build_plan(ecr), [image])
    with pytest.raises(CheckFailed) as error:
        images.require_images(build_plan(Ecr("demo/router:0.1.17-15")), [image])
    assert str(error.value) == (
        f"{image} is not in the fleet's registry. Nothing was changed. Fix: run images/build router --fleet fleet.yaml, or "
        f"remove its line from {Path('images.lock.yaml').resolve()} to pull it by its tag"
    )


@pytest.mark.parametrize("name", list(own_image.IMAGES))
def test_images_with_code_of_ours_are_pulled_by_the_digest_of_their_build(name: str) -> None:
    image, digest = own_image.IMAGES[name].format_image(REGISTRY), f"sha256:{'1' * 64}"
    assert own_image.IMAGES[name].format_image(REGISTRY, {image: digest}) == f"{image}@{digest}"
    other = image.replace(own_image.IMAGES[name].tag, "0.1.0-000000000000")
    assert own_image.IMAGES[name].format_image(REGISTRY, {other: digest}) == image, "an earlier build of other code"


def test_a_release_on_eks_looks_for_its_images_before_it_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release.addons, "require_tools", lambda *_: None)
    monkeypatch.setattr(release.planning, "write_rendered", lambda *_, **__: Path("values.yaml"))
    monkeypatch.setattr(helm, "read", lambda _: SimpleNamespace(is_latest=False))
    monkeypatch.setattr(helm, "diff", lambda *_: "+ deployment")
    with pytest.raises(CheckFailed, match="is not in the fleet's registry"):
        release.deploy(build_plan(Ecr()), lambda _: pytest.fail("the question comes after the check"))


def plan_aggregated(folder: Path, extra: str = "") -> Any:
    shutil.copytree(paths.PATTERNS / "aggregated", folder / "mine", dirs_exist_ok=True)
    with (folder / "mine" / "blueprint.yaml").open("a") as file:
        file.write(extra)
    shutil.copy(paths.ROOT / "fleet.yaml", folder)
    return planning.plan(
        folder / "mine", folder / "fleet.yaml", target="eks", root=folder, account="123456789012"
    ).deployment


def test_a_pinned_image_is_pulled_by_its_digest_and_another_is_named(tmp_path: Path) -> None:
    tag, digest = "vllm/vllm-openai:v0.32.0", f"sha256:{'1' * 64}"
    deployment = plan_aggregated(tmp_path)
    note = f"{tag} is pulled by its tag; `blueprint images pin` keeps the digest in images.lock.yaml."
    assert deployment.engine_roles[0].image == tag and note in deployment.notes
    image_pins.write(tmp_path / "fleet.yaml", {tag: digest})
    pinned = plan_aggregated(tmp_path)
    assert pinned.engine_roles[0].image == f"{tag}@{digest}"
    assert not [line for line in pinned.notes if "is pulled by its tag" in line]


def test_an_image_of_your_own_is_said_to_have_options_of_its_own(tmp_path: Path) -> None:
    note = (
        "Options and memory are those of the pinned version of vllm; vllm/vllm-openai:v0.31.0 may have another, which "
        "refuses options or takes more memory."
    )
    assert note in plan_aggregated(tmp_path, "image: vllm/vllm-openai:v0.31.0\n").notes
    assert note not in plan_aggregated(tmp_path).notes
