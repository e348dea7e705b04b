"""What kinds of work need of an account: names that AWS has, in a form that the fleet's parts read."""

from __future__ import annotations

from pathlib import Path

import pytest
from botocore.loaders import Loader

from llm_serving import paths
from llm_serving.aws.preflight import permissions
from llm_serving.catalog import account_needs, own_image, services
from llm_serving.catalog.account_needs import AccountNeeds
from llm_serving.fleet import endpoints, standing_cost
from llm_serving.fleet.model import Fleet, Storage
from llm_serving.services import kinds

NEEDS = account_needs.load_all()

API_NAMES = {"states": "stepfunctions", "elasticloadbalancing": "elbv2"}
"""AWS's own name of an API, by its name elsewhere."""


def test_only_kinds_have_needs() -> None:
    assert set(NEEDS) <= set(kinds.list_kinds())


@pytest.mark.parametrize("needs", NEEDS.values(), ids=list(NEEDS))
def test_every_endpoint_is_of_a_service_that_aws_has(needs: AccountNeeds) -> None:
    names = set(Loader().list_available_services("service-2"))
    assert {API_NAMES.get(row.service, row.service) for row in needs.endpoints} <= names


@pytest.mark.parametrize("needs", NEEDS.values(), ids=list(NEEDS))
def test_images_have_a_folder_and_prices_have_a_row(needs: AccountNeeds) -> None:
    assert all((paths.IMAGES / image / "Dockerfile").is_file() for image in needs.images)
    assert set(needs.standing) <= set(services.load())


def test_a_kind_that_is_added_is_asked_by_networks_costs_registries_and_preflight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "some-diary"
    folder.mkdir()
    (folder / account_needs.FILE).write_text(
        "read_on: '2026-11-25'\npermissions: {ecs: [kinesis:CreateStream]}\nendpoints: {kinesis-streams: {reason: writes}}\n"
        "standing: {kms-key: 2}\nimages: [diary-writer]\n"
    )
    monkeypatch.setattr(account_needs, "KINDS", tmp_path)
    account_needs.load_all.cache_clear()
    try:
        assert account_needs.list_images() == ["diary-writer"]
        assert {row.service for row in endpoints.list_required("ecs")} >= {"kinesis-streams"}
        fleet = Fleet.model_validate(
            {
                "name": "demo",
                "region": "us-west-2",
                "zones": ("us-west-2a",),
                "orchestrator": "ecs",
                "pools": {"general": {"types": "g6e.xlarge", "size": 1}},
            }
        )
        assert permissions.list_actions_by_kind(fleet) == {"some-diary": ("kinesis:CreateStream",)}
        items = {item.name: item.count for item in standing_cost.list_items(fleet)}
        assert items["kms-key for some-diary"] == 2
    finally:
        account_needs.load_all.cache_clear()


def test_the_images_of_batches_are_known_by_name() -> None:
    assert set(account_needs.list_images()) <= {*own_image.IMAGES, *Storage().repositories}
