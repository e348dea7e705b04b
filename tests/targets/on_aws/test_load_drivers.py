"""From where a validation's load comes on AWS, with a fake of ECR."""

from __future__ import annotations

import pytest

from llm_serving.catalog.own_image import LOAD_DRIVER
from llm_serving.settings.errors import CheckFailed, InputError
from llm_serving.targets.base import LoadOrigin
from llm_serving.targets.local.target import TARGET as LOCAL
from llm_serving.targets.on_aws import load_drivers
from tests.targets.on_aws.test_images import REGISTRY, Ecr, build_plan

IMAGE = f"demo/{LOAD_DRIVER.name}:{LOAD_DRIVER.tag}"
FIX = (
    f"{REGISTRY}/{LOAD_DRIVER.name}:{LOAD_DRIVER.tag} is not in the fleet's registry. Nothing was changed. "
    "Fix: run images/build load-driver --fleet fleet.yaml"
)


def test_the_load_comes_from_inside_where_the_registry_has_the_image() -> None:
    assert load_drivers.choose_origin(build_plan(Ecr(IMAGE)), None, None) is LoadOrigin.CLUSTER


def test_without_the_image_it_comes_from_here_and_says_what_to_push(capsys: pytest.CaptureFixture[str]) -> None:
    assert load_drivers.choose_origin(build_plan(Ecr()), None, None) is LoadOrigin.HERE
    message = " ".join(capsys.readouterr().err.split())
    assert message == f"The load goes through a tunnel, which suits trials: {FIX}"


def test_a_load_that_must_come_from_inside_is_refused_without_the_image() -> None:
    with pytest.raises(CheckFailed) as error:
        load_drivers.choose_origin(build_plan(Ecr()), LoadOrigin.CLUSTER, None)
    assert str(error.value) == FIX


@pytest.mark.parametrize(("wish", "url"), [(LoadOrigin.HERE, None), (None, "https://gateway.example.com")])
def test_the_registry_is_not_asked_for_a_load_from_here(wish: LoadOrigin | None, url: str | None) -> None:
    ecr = Ecr(IMAGE)
    assert load_drivers.choose_origin(build_plan(ecr), wish, url) is LoadOrigin.HERE
    assert ecr.requests == []


def test_an_api_key_stays_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLUEPRINT_API_KEY", "secret")
    with pytest.raises(InputError) as error:
        load_drivers.choose_origin(build_plan(Ecr(IMAGE)), LoadOrigin.CLUSTER, "https://gateway.example.com")
    assert str(error.value) == (
        '--load-from: "cluster": BLUEPRINT_API_KEY is set, and the key stays on this machine. '
        "Fix: use --load-from here, or unset BLUEPRINT_API_KEY."
    )


def test_this_machine_has_no_cluster_to_load_from(tmp_path: object) -> None:
    inputs = LOCAL.open_validation(tmp_path, tmp_path, None, origin=LoadOrigin.CLUSTER)  # type: ignore[arg-type]
    with pytest.raises(InputError) as error, inputs:
        raise AssertionError("nothing is opened")
    assert str(error.value) == (
        '--load-from: "cluster": the target local is this machine. Fix: use --target eks or ecs.'
    )
