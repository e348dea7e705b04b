from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_serving import paths, processes
from llm_serving.aws.preflight.check import CheckResult
from llm_serving.catalog import own_image
from llm_serving.rehearsal import emulator
from llm_serving.settings.errors import CheckFailed
from llm_serving.targets import planning
from llm_serving.targets.on_aws import images
from tests.cli.commands.conftest import RunCommand

pytestmark = pytest.mark.usefixtures("without_aws")

ROOT = Path(__file__).parents[3]
FLEET = """\
name: demo
region: us-west-2
zones: [us-west-2a, us-west-2b]
spend_limit: {limit} USD/h
state: s3://my-state/fleets
pools:
  general:
    types: {type}
    size: 0..4
"""


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with emulator.start(tmp_path_factory.mktemp("aws")) as url:
        yield url


def _write_fleet(tmp_path: Path, limit: int = 100, kind: str = "g6e.xlarge") -> str:
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET.format(limit=limit, type=kind))
    return str(file)


def test_without_credentials_it_is_one_line_and_3(tmp_path: Path, run_command: RunCommand) -> None:
    result = run_command("preflight", "--fleet", _write_fleet(tmp_path))
    assert (result.code, result.out) == (3, "")
    assert result.err.splitlines()[-1] == (
        "no AWS credentials found. Fix: sign in (`aws sso login`), or set AWS_PROFILE."
    )
    assert "Traceback" not in result.err


def test_a_server_that_does_not_answer_is_one_line_and_3(tmp_path: Path, run_command: RunCommand) -> None:
    unreachable_url = f"http://127.0.0.1:{processes.claim_free_ports(1)[0]}"
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_ENDPOINT_URL": unreachable_url}
    result = run_command("preflight", "--json", "--fleet", _write_fleet(tmp_path), **keys)
    message = f'AWS could not be asked: Could not connect to the endpoint URL: "{unreachable_url}/"'
    assert (result.code, result.err.splitlines()[-1]) == (3, message)
    assert json.loads(result.out) == {"ok": False, "mistakes": [{"message": message}]}


def test_a_missing_profile_is_one_line_and_exits_3(tmp_path: Path, run_command: RunCommand) -> None:
    result = run_command("preflight", "--fleet", _write_fleet(tmp_path), AWS_PROFILE="nobody")
    assert result.code == 3
    assert result.err.splitlines()[-1] == "AWS could not be asked: The config profile (nobody) could not be found"


@pytest.mark.terraform
def test_json_has_every_check_and_nothing_else_is_printed(
    tmp_path: Path, endpoint: str, run_command: RunCommand
) -> None:
    environment = emulator.build_client_env(endpoint, "us-west-2")
    result = run_command("preflight", "--json", "--fleet", _write_fleet(tmp_path), **environment)
    response = json.loads(result.out)
    assert result.code == 0, result.out
    assert (response["fleet"], response["region"], response["account"]) == ("demo", "us-west-2", emulator.ACCOUNT)
    assert (response["ok"], response["answered_by"]) == (True, f"the server at {endpoint}")
    titles = [group["title"] for group in response["groups"]]
    assert titles == ["identity", "account", "zones", "quotas", "subnets", "pinned versions", "state", "price"]
    lines = [line for group in response["groups"] for line in group["lines"]]
    keys = ["about", "status", "known", "unanswered", "said", "share", "remedy", "command"]
    assert all(list(line) == keys for line in lines)
    statuses = [line["status"] for line in lines]
    assert response["counts"] == {
        **{status: statuses.count(status) for status in ("pass", "warn", "fail")},
        "unknown": sum(not line["known"] for line in lines),
    }
    # A check that the embedded AWS cannot answer is unknown, and never passes.
    assert all(line["status"] == "warn" for line in lines if not line["known"])
    by_name = {line["about"]: line for line in lines}
    assert by_name["VPCs per Region"]["known"]
    assert not by_name["Running On-Demand G and VT instances"]["known"]


@pytest.mark.terraform
def test_over_the_spend_limit_exits_1_with_the_fix(tmp_path: Path, endpoint: str, run_command: RunCommand) -> None:
    environment = emulator.build_client_env(endpoint, "us-west-2")
    result = run_command("preflight", "--fleet", _write_fleet(tmp_path, limit=1), **environment, COLUMNS="120")
    assert result.code == 1
    assert "✗  spend limit" in result.out
    assert "USD/h or more, or use smaller pools" in result.out
    assert "1 fail" in result.out.splitlines()[-1]


@pytest.mark.terraform
def test_a_type_missing_from_the_catalog_is_one_line_and_the_other_checks_run(
    tmp_path: Path, endpoint: str, run_command: RunCommand
) -> None:
    environment = emulator.build_client_env(endpoint, "us-west-2")
    result = run_command("preflight", "--json", "--fleet", _write_fleet(tmp_path, kind="g6e.7xlarge"), **environment)
    groups = {group["title"]: group["lines"] for group in json.loads(result.out)["groups"]}
    assert result.code == 1
    assert "the catalog has no such instance type" in groups["fleet file"][0]["said"]
    assert [line["unanswered"] for line in groups["quotas"]] == [
        "a type is not in the catalog, so usage was not counted"
    ]
    assert groups["zones"][0]["status"] == "pass"


_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def _push(endpoint: str, *images: str) -> None:
    """Put images with some content into the embedded registry, in this order."""
    ecr = emulator.open_session(endpoint, "us-west-2").client("ecr")
    for image in images:
        name, _, tag = image.partition(":")
        with contextlib.suppress(ecr.exceptions.RepositoryAlreadyExistsException):
            ecr.create_repository(repositoryName=name)
        ecr.put_image(
            repositoryName=name, imageManifest=json.dumps({"mediaType": _MANIFEST, "image": image}), imageTag=tag
        )


def _write_batch(tmp_path: Path, orchestrator: str) -> tuple[Path, Path]:
    """Write a fleet and a batch whose only images are of the fleet's registry; return both."""
    fleet = Path(_write_fleet(tmp_path))
    named = fleet.read_text().replace("name: demo", f"name: demo-{orchestrator}")
    fleet.write_text(f"orchestrator: {orchestrator}\n{named}")
    batch = Path(shutil.copytree(paths.PATTERNS / "offline-batch", tmp_path / "batch"))
    blueprint = "kind: batch\npattern: offline-batch\nendpoint: {deployment: chat}\nsample: {model: m}\n"
    (batch / "blueprint.yaml").write_text(blueprint)
    return fleet, batch


_OLDER = "is not in the fleet's registry, whose newest, 0.1.0-000000000000, was built from another version"


@pytest.mark.parametrize("orchestrator", ["eks", "ecs"])
def test_images_that_the_registry_lacks_are_refused_by_preflight_and_deploy(
    tmp_path: Path, endpoint: str, orchestrator: str
) -> None:
    fleet, batch = _write_batch(tmp_path, orchestrator)
    session = emulator.open_session(endpoint, "us-west-2")
    plan = planning.plan(batch, fleet, target=orchestrator, root=tmp_path, aws=session, account=emulator.ACCOUNT)
    [image] = {service.image for service in plan.deployment.services}
    label = f"batch-worker:{own_image.IMAGES['batch-worker'].tag}"
    build = f"run images/build batch-worker --fleet {fleet}"
    missing = "is not in the fleet's registry, which has no repository for it"
    apply = f"add batch-worker to storage.repositories of {fleet}, apply the stack storage, and {build}"
    for reason, fix, pushed in ((missing, apply, "0.1.0-000000000000"), (_OLDER, build, label.partition(":")[2])):
        assert images.check_images(plan) == [CheckResult(label, "fail", reason, fix)]
        with pytest.raises(CheckFailed) as error:
            images.require_images(plan, [image])
        assert str(error.value) == f"{image} {reason}. Nothing was changed. Fix: {fix}"
        _push(endpoint, f"demo-{orchestrator}/batch-worker:{pushed}")
    assert images.check_images(plan) == [CheckResult(label, "pass", "in the fleet's registry")]
    images.require_images(plan, [image])


@pytest.mark.terraform
def test_a_fleet_without_the_images_of_a_blueprint_exits_1(
    tmp_path: Path, endpoint: str, run_command: RunCommand
) -> None:
    fleet, batch = _write_batch(tmp_path, "both")
    environment = emulator.build_client_env(endpoint, "us-west-2")
    result = run_command("preflight", "--json", "--fleet", str(fleet), str(batch), **environment)
    *_, group = json.loads(result.out)["groups"]
    assert (result.code, group["title"]) == (1, "images of batch")
    assert [(row["status"], row["remedy"].partition(",")[0]) for row in group["lines"]] == [
        ("fail", f"add batch-worker to storage.repositories of {fleet}")
    ] * 2, "one for each orchestrator"


@pytest.mark.terraform
def test_the_state_bucket_is_previewed_created_once_and_removed(
    tmp_path: Path, endpoint: str, run_command: RunCommand
) -> None:
    environment = emulator.build_client_env(endpoint, "us-west-2")
    fleet = _write_fleet(tmp_path)
    unanswered = run_command("state", "make", "--fleet", fleet, **environment)
    assert unanswered.code == 2
    assert "$ aws s3api create-bucket --bucket my-state" in unanswered.err
    created = run_command("state", "make", "--fleet", fleet, "--yes", **environment)
    assert created.code == 0, created.err
    repeated = run_command("state", "make", "--fleet", fleet, **environment)
    assert repeated.out == "s3://my-state/fleets: the bucket is up to date\n"
    removed = run_command("state", "remove", "--fleet", fleet, "--yes", **environment)
    assert removed.code == 0, removed.err
    assert run_command("state", "remove", "--fleet", fleet, **environment).out == (
        "s3://my-state/fleets: the bucket does not exist\n"
    )
