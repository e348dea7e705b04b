"""Every value that a fleet's key can have is in one of the fleets that the tests synthesize, plan and apply."""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import load
from tests.infra.conftest import EXAMPLES, FLEETS
from tests.infra.deployments import ACCOUNT

Value = tuple[tuple[str, ...], object]


def list_possible_values(annotation: Any, path: tuple[str, ...] = ()) -> Iterator[Value]:
    """Yield each value that a key enumerates, with the key's path."""
    if typing.get_origin(annotation) is typing.Literal:
        yield from ((path, value) for value in typing.get_args(annotation))
    elif annotation is bool:
        yield from ((path, True), (path, False))
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            yield from list_possible_values(field.annotation, (*path, name))
    else:
        for argument in typing.get_args(annotation):
            yield from list_possible_values(argument, path)


def list_values(setting: Any, path: tuple[str, ...] = ()) -> Iterator[Value]:
    """Yield each value of a fleet, with its key's path; keys that users choose are left out of it."""
    if isinstance(setting, BaseModel):
        for name in type(setting).model_fields:
            yield from list_values(getattr(setting, name), (*path, name))
    elif isinstance(setting, dict | list | tuple | set | frozenset):
        for item in setting.values() if isinstance(setting, dict) else setting:
            yield from list_values(item, path)
    else:
        yield path, setting


@pytest.fixture(scope="module")
def values_by_fleet(synth_folder: Any) -> dict[str, set[Value]]:
    shapes = (*EXAMPLES, *FLEETS)
    return {shape: set(list_values(load(synth_folder / shape / "fleet.yaml", Fleet).value)) for shape in shapes}


def test_every_enumerated_value_is_in_a_fleet(values_by_fleet: dict[str, set[Value]]) -> None:
    possible = set(list_possible_values(Fleet))
    assert len(possible) >= 40, "the walk finds the keys"
    missing = possible - set.union(*values_by_fleet.values())
    assert not missing, f"add to FLEETS of tests/infra/conftest.py: {sorted(missing, key=str)}"


def test_the_check_can_fail(values_by_fleet: dict[str, set[Value]]) -> None:
    without = [values for shape, values in values_by_fleet.items() if shape != "s3"]
    missing = set(list_possible_values(Fleet)) - set.union(*without)
    assert (("pools", "images"), "soci") in missing


@pytest.mark.parametrize("access", ["open", "account", "o-a1b2c3d4e5"])
def test_every_form_of_access_to_endpoints_is_in_a_fleet(values_by_fleet: dict[str, set[Value]], access: str) -> None:
    assert (("network", "endpoint_access"), access) in set.union(*values_by_fleet.values())


def list_condition_accounts(stack: Any) -> Iterator[str]:
    """Yield the account of each condition in a policy, also of one inside an expression, as Terraform resolves it."""
    text = re.sub(r"\\+\"", '"', json.dumps(stack))
    resolved = text.replace("${data.aws_caller_identity.account.account_id}", ACCOUNT)
    yield from re.findall(r'"aws:\w+Account": ?"([^"]*)"', resolved)


def test_every_condition_on_an_account_has_its_twelve_digits(stacks: dict[tuple[str, str], Any]) -> None:
    accounts = {key: set(list_condition_accounts(stack)) for key, stack in stacks.items()}
    assert {key: found for key, found in accounts.items() if found - {ACCOUNT}} == {}
    assert {stack for (_, stack), found in accounts.items() if found} >= {"network", "eks", "ecs"}

    endpoint = stacks["machines", "network"]["resource"]["aws_vpc_endpoint"]["sts"]
    assert list(list_condition_accounts(endpoint)) == [ACCOUNT]
    reference = "data.aws_caller_identity.account.account_id"
    bare = {"policy": endpoint["policy"].replace("${" + reference + "}", reference)}
    assert list(list_condition_accounts(bare)) == [reference], "the check can fail"
