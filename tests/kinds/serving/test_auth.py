"""`auth` of a serving blueprint: what the router's front is told, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_serving.catalog import routers
from llm_serving.kinds.serving import auth
from llm_serving.kinds.serving.auth import Auth
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.kinds.serving.context import list_port_names
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.kinds.serving.summary import describe_for_others
from llm_serving.kinds.serving.validation import validate
from llm_serving.services.environment import Environment
from llm_serving.services.service import Secret
from llm_serving.services.team_keys import TeamKeys
from llm_serving.settings.document import load
from llm_serving.settings.errors import InputError
from llm_serving.targets.local.environment import CONVENTIONS
from llm_serving.validation.base import ValidationOptions
from tests.kinds.serving import resolving
from tests.kinds.serving.test_services import FLEET, SCALED

AUTH = "auth: {keys: {secret: llm/keys, file: keys.json}, requests_per_minute: {search: 600, ads: 60}}\n"
KMS_KEY = "arn:aws:kms:us-west-2:123456789012:key/12345678-1234-1234-1234-123456789012"
PORTS = {"router": 18080, "router-admin": 18081, "router-usage": 18082}


def resolve(folder: Path, text: str, target: str = "local", pool: str = "general") -> ServingDeployment:
    folder.mkdir()
    overrides = {"ports": PORTS, "hidden_host": "127.5.5.5"}
    return resolving.resolve_files(folder, SCALED.format(pool=pool) + text, FLEET, target, **overrides)


def test_the_front_asks_for_the_keys_of_the_file_beside_the_blueprint(tmp_path: Path) -> None:
    deployment = resolve(tmp_path / "mine", AUTH)
    *_, router = deployment.services
    front = router.command[: router.command.index("--")]
    assert [word for word in front if word.startswith(("--keys", "--usage", "--limit"))] == [
        f"--keys={tmp_path / 'mine' / 'keys.json'}",
        "--usage=127.5.5.5:18082",
        "--limit=search=600",
        "--limit=ads=60",
    ]
    assert deployment.url == "http://127.0.0.1:18080"
    assert (router.host, router.port) == ("127.5.5.5", 18081), "the probe has no key, and asks the router itself"
    door = describe_for_others(deployment).door
    assert door and door.usage_address == "127.5.5.5:18082"


def test_without_auth_everybody_may_call(tmp_path: Path) -> None:
    deployment = resolve(tmp_path / "mine", "")
    *_, router = deployment.services
    assert not [word for word in router.command if word.startswith(("--keys", "--usage", "--limit"))]
    assert (router.host, router.port, deployment.door) == ("127.0.0.1", 18080, None)


def test_a_port_for_what_teams_used_is_chosen_only_with_keys(tmp_path: Path) -> None:
    file = tmp_path / "blueprint.yaml"
    for text, is_chosen in {"": False, AUTH: True}.items():
        file.write_text(SCALED.format(pool="general") + text)
        assert (auth.USAGE_PORT in list_port_names(load(file, Blueprint).value)) == is_chosen


@pytest.mark.parametrize(
    ("target", "pool", "name"),
    [("eks", "general", "mine-router.serving"), ("ecs", "on-ecs", "mine-router.demo.internal")],
)
def test_on_aws_the_router_reads_the_secret_and_each_has_a_page_of_what_teams_used(
    tmp_path: Path, target: str, pool: str, name: str
) -> None:
    deployment = resolve(
        tmp_path / "mine", AUTH.replace("file", "key: KEY, file").replace("KEY", KMS_KEY), target, pool
    )
    *engine_services, router = deployment.services
    assert [word for word in router.command if word.startswith(("--keys", "--usage", "--limit"))] == [
        "--keys=secret:llm/keys",
        "--usage=0.0.0.0:9092",
        "--limit=search=600",
        "--limit=ads=60",
    ]
    assert (router.secrets, router.ports["usage"]) == ((Secret(secret="llm/keys", key=KMS_KEY),), 9092)
    assert router.env["AWS_REGION"] == "us-west-2"
    assert not any(service.secrets for service in engine_services), "engines know no key"
    door = describe_for_others(deployment).door
    assert door and door.usage_address == f"{name}:9092"


@pytest.mark.parametrize(("target", "pool", "title"), [("eks", "general", "EKS"), ("ecs", "on-ecs", "ECS")])
def test_on_aws_a_file_alone_is_refused_rather_than_not_asked_for(
    tmp_path: Path, target: str, pool: str, title: str
) -> None:
    with pytest.raises(InputError) as refused:
        resolve(tmp_path / "mine", "auth: {keys: {file: keys.json}}\n", target, pool)
    assert str(refused.value) == (
        f'{tmp_path / "mine" / "blueprint.yaml"}:8:21: auth.keys.file: "keys.json": on {title} keys come from a secret. '
        "Fix: set secret: NAME beside file."
    )


def test_a_secret_of_another_region_is_refused(tmp_path: Path) -> None:
    arn = "arn:aws:secretsmanager:eu-west-1:123456789012:secret:keys-AbCdEf"
    with pytest.raises(
        InputError, match=r"a router on EKS reads secrets of its own region, us-west-2\. Fix: use a secret"
    ):
        resolve(tmp_path / "mine", f'auth: {{keys: {{secret: "{arn}"}}}}\n', "eks")


def test_keys_in_a_secret_alone_are_refused_on_this_machine(tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        resolve(tmp_path / "mine", "auth: {keys: {secret: llm/keys}}\n")
    assert str(refused.value) == (
        f'{tmp_path / "mine" / "blueprint.yaml"}:8:23: auth.keys.secret: "llm/keys": on this machine keys come from a '
        "file. Fix: set file: FILE beside secret."
    )


def test_a_router_without_nginx_before_it_is_refused() -> None:
    router = routers.load_routers()["vllm-router"].model_copy(update={"front": ()})
    environment = Environment(target="local", conventions=CONVENTIONS, region="us-west-2", bucket="")
    [conflict] = auth.check(Auth(keys=TeamKeys(file="keys.json")), router, environment)
    assert conflict.reason == "nginx, which asks for keys, is not before the router of this engine and framework"


def test_validate_without_a_key_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BLUEPRINT_API_KEY", raising=False)
    options = ValidationOptions(folder=tmp_path, runs=tmp_path, logs=tmp_path)
    with pytest.raises(InputError) as refused:
        validate.validate(resolve(tmp_path / "mine", AUTH), options)
    assert str(refused.value) == (
        "http://127.0.0.1:18080: it asks for a key of a team. Fix: set BLUEPRINT_API_KEY to one."
    )
