"""Streaming blueprints: what they resolve to, and what they refuse."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from llm_serving import paths
from llm_serving.cli import main
from llm_serving.kinds.streaming import programs
from llm_serving.kinds.streaming.cloud import SETTINGS_VARIABLE
from llm_serving.kinds.streaming.deployment import StreamingDeployment
from llm_serving.services import deployments
from llm_serving.services.deployment import FoundDeployment
from llm_serving.settings.errors import InputError, Unavailable
from llm_serving.targets import planning

PATTERN = paths.PATTERNS / "near-real-time"
FLEET = paths.ROOT / "fleet.yaml"
FOREIGN = "arn:aws:secretsmanager:eu-west-1:123456789012:secret:llm/key-AbCdEf"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PATTERN, tmp_path / "shop"))


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def resolve(folder: Path) -> StreamingDeployment:
    deployment = planning.plan_offline(folder, FLEET, "local").deployment
    assert isinstance(deployment, StreamingDeployment)
    return deployment


def read_job(deployment: StreamingDeployment) -> dict[str, Any]:
    """Read what the job is told."""
    (job_manager,) = deployment.entries
    settings: dict[str, Any] = json.loads(job_manager.env[SETTINGS_VARIABLE])
    return settings


def test_the_job_is_told_the_prompt_the_schema_and_every_limit(folder: Path) -> None:
    deployment = resolve(folder)
    job = read_job(deployment)
    assert base64.b64decode(job["prompt"]).decode() == (PATTERN / "prompt.txt").read_text()
    assert base64.b64decode(job["eventSchema"]).decode() == (PATTERN / "event.schema.json").read_text()
    assert job["limits"] == {"eventBytes": 16384, "lateMs": 300_000, "futureMs": 60_000}
    assert job["session"] == {"timeoutMs": 1_800_000, "events": 20}
    assert job["endpoint"]["deadlineMs"] == 2000
    assert job["kafka"]["brokers"] == deployment.brokers
    assert [service.name for service in deployment.services] == ["endpoint", "taskmanager", "generator", "jobmanager"]


def test_no_event_is_overtaken_or_shed_unless_the_blueprint_says_so(folder: Path) -> None:
    job = read_job(resolve(folder))
    assert (job["endpoint"]["overtake"], job["shed"]) == (False, None)
    change(folder / "blueprint.yaml", "overtake: false", "overtake: true")
    change(
        folder / "blueprint.yaml", "# shed: {after: 5s, keep: [purchase]} #", "shed: {after: 5s, keep: [purchase]} #"
    )
    job = read_job(resolve(folder))
    assert (job["endpoint"]["overtake"], job["shed"]) == (True, {"afterMs": 5000, "keep": ["purchase"]})


def test_answers_go_to_the_embedded_s3_only_where_the_blueprint_says_so(folder: Path) -> None:
    deployment = resolve(folder)
    assert (deployment.answer_files, read_job(deployment)["answerFiles"]) == ("", "")
    assert not any("s3." in word for service in deployment.services for word in service.command)
    change(folder / "blueprint.yaml", "parquet: false", "parquet: true")
    deployment = resolve(folder)
    assert read_job(deployment)["answerFiles"] == f"s3://{deployment.environment.bucket}/streaming/shop/answers/"
    for service in deployment.services:
        has_s3 = service.name in ("taskmanager", "jobmanager")
        assert (f"-Ds3.endpoint={deployment.environment.s3_endpoint}" in service.command) == has_s3
        assert ("FLINK_PLUGINS_DIR" in service.env) == has_s3


def test_every_heap_is_bounded(folder: Path) -> None:
    commands = [service.command for service in resolve(folder).services if service.command[0] == "java"]
    heaps = [int(word[4:-1]) for command in commands for word in command if word.startswith("-Xmx")]
    assert len(heaps) == len(commands) == 4
    assert max(heaps) <= 512


def test_another_endpoint_needs_no_mock(folder: Path) -> None:
    file = folder / "blueprint.yaml"
    change(file, "mock: {latency: 0.1s}", "url: http://127.0.0.1:8000/v1\n  model: tiny")
    deployment = resolve(folder)
    assert (deployment.endpoint_url, deployment.model) == ("http://127.0.0.1:8000", "tiny")
    assert "endpoint" not in [service.name for service in deployment.services]


@pytest.mark.parametrize("space", [" ", "\n"])
def test_a_prompt_with_an_unknown_field_is_refused_at_its_line(folder: Path, space: str) -> None:
    text = f'Events:\n  {{{{{space}event.colour }}}} of {{{{ shopper }}}}, "{{{{session}}}}"\n'
    (folder / "prompt.txt").write_text(text)
    with pytest.raises(InputError) as refused:
        resolve(folder)
    assert str(refused.value) == (
        f'{folder}/prompt.txt:2:3: "event.colour": there is no such field. Fix: use shopper or session or event.version '
        "or event.id or event.shopper or event.type or event.item or event.at."
    )


def test_a_schema_that_does_not_require_what_the_job_reads_is_refused(folder: Path) -> None:
    change(folder / "event.schema.json", '"required": ["version", "id", "shopper",', '"required": ["version",')
    with pytest.raises(InputError) as refused:
        resolve(folder)
    assert str(refused.value) == (
        f"{folder}/event.schema.json:1:1: required: it does not require id, shopper, which the job reads. "
        "Fix: add id, shopper."
    )


def test_a_schema_that_is_no_json_is_refused_at_its_line(folder: Path) -> None:
    (folder / "event.schema.json").write_text('{\n"type" "object"}')
    with pytest.raises(InputError, match=r"event\.schema\.json:2:1: it is not JSON: .*\. Fix: correct the line\."):
        resolve(folder)


def test_a_deployment_that_writes_no_text_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = FoundDeployment(name="vectors", kind="serving", url="http://127.0.0.1:9", task="embed")
    monkeypatch.setattr(deployments, "find", lambda *_: vectors)
    change(folder / "blueprint.yaml", "mock: {latency: 0.1s}", "deployment: vectors")
    with pytest.raises(
        InputError, match=r"its task is embed, and it is asked to generate\. Fix: name a deployment with task"
    ):
        resolve(folder)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (
            '{"required": true}',
            "required: it is not a JSON Schema: True is not of type 'array'. Fix: correct the field.",
        ),
        (
            '{"properties": null}',
            "properties: it is not a JSON Schema: None is not of type 'object'. Fix: correct the field.",
        ),
        ("[" * 1000, "it is not JSON: more than 100 levels: line 1 column 1 (char 0). Fix: correct the line."),
    ],
)
def test_what_is_no_schema_is_refused_before_the_job_reads_it(folder: Path, schema: str, message: str) -> None:
    (folder / "event.schema.json").write_text(schema)
    with pytest.raises(InputError) as refused:
        resolve(folder)
    assert str(refused.value) == f"{folder}/event.schema.json:1:1: {message}"


def test_a_type_to_keep_that_the_schema_does_not_allow_is_refused(folder: Path) -> None:
    """It would be shed in silence."""
    change(folder / "blueprint.yaml", "\ncache:", "\nshed: {after: 5s, keep: [cart, purchas]}\ncache:")
    with pytest.raises(InputError) as refused:
        resolve(folder)
    assert str(refused.value).endswith(
        'shed.keep: "purchas": event.schema.json allows no such `type`. Fix: use view or click or cart or purchase.'
    )
    change(folder / "event.schema.json", '{"enum": ["view", "click", "cart", "purchase"]}', '{"type": "string"}')
    resolve(folder)


@pytest.mark.parametrize("reference", ["#/$defs/nobody", "common.json", "common.json#/$defs/id"])
def test_a_reference_that_leads_nowhere_in_the_job_is_refused(folder: Path, reference: str) -> None:
    """The job has the one file: it would make each event a dead letter."""
    change(folder / "event.schema.json", '{"type": "string", "maxLength": 64}', f'{{"$ref": "{reference}"}}')
    with pytest.raises(InputError) as refused:
        resolve(folder)
    assert str(refused.value) == (
        f'{folder}/event.schema.json:1:1: $ref: "{reference}": this file has nothing there. Fix: write it below $defs.'
    )


@pytest.mark.parametrize("reference", ["#/$defs/item", "#item", "item.json", "https://example.com/item.json"])
def test_a_reference_within_the_schema_or_to_a_url_is_taken(folder: Path, reference: str) -> None:
    change(folder / "event.schema.json", '{"type": "string", "maxLength": 64}', f'{{"$ref": "{reference}"}}')
    own = '"own": {"$id": "item.json", "$ref": "#/$defs/x", "$defs": {"x": true}}'
    definitions = f'"$defs": {{"item": {{"$anchor": "item"}}, {own}}}'
    change(folder / "event.schema.json", '"type": "object",', f'"type": "object", {definitions},')
    resolve(folder)


def test_a_prompt_that_no_variable_holds_is_refused_before_the_job_starts(folder: Path) -> None:
    (folder / "prompt.txt").write_text("{{ shopper }} " * 7_000)
    with pytest.raises(
        InputError, match=r'prompt: "prompt.txt": with the schema .* 13\d{4} characters, and a variable 131055'
    ):
        resolve(folder)


def test_a_missing_prompt_is_refused_at_the_line_that_names_it(folder: Path) -> None:
    (folder / "prompt.txt").unlink()
    line = (folder / "blueprint.yaml").read_text().splitlines().index("prompt: prompt.txt") + 1
    with pytest.raises(InputError) as refused:
        resolve(folder)
    assert str(refused.value) == (
        f'{folder}/blueprint.yaml:{line}:9: prompt: "prompt.txt": it cannot be read: No such file or directory. '
        "Fix: write the file."
    )


@pytest.mark.parametrize(
    ("usual", "refused", "taken", "message"),
    [
        pytest.param(
            "event: 16Ki", "event: 512Ki", "event: 256Ki", r"limits\.event", id="dead letters that are too large"
        ),
        pytest.param(
            "checkpoint: 1s",
            "checkpoint: 1h",
            "checkpoint: 30min",
            r"checkpoint: \"1h\"",
            id="answers that are aborted",
        ),
    ],
)
def test_what_kafka_would_refuse_or_abort_is_refused(
    folder: Path, usual: str, refused: str, taken: str, message: str
) -> None:
    change(folder / "blueprint.yaml", usual, refused)
    with pytest.raises(InputError, match=message):
        resolve(folder)
    change(folder / "blueprint.yaml", refused, taken)
    resolve(folder)


def test_exactly_one_endpoint_is_asked(folder: Path) -> None:
    change(folder / "blueprint.yaml", "mock: {latency: 0.1s}", "mock: {}\n  deployment: chat")
    with pytest.raises(InputError, match=r"it must have exactly one of mock, deployment and url\. Fix: set mock: \{\}"):
        resolve(folder)


def test_what_eks_lacks_is_refused_at_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(folder / "blueprint.yaml", "mock: {latency: 0.1s}", "url: https://llm.example.com\n  model: tiny")
    change(folder / "blueprint.yaml", "\n  model: tiny", "\n  model: tiny\n  api_key: {secret: llm/keys}")
    change(folder / "blueprint.yaml", "parquet: false", "parquet: true")
    assert main.run(["check", str(folder), "--fleet", str(FLEET), "--target", "eks"]) == 2
    file = folder / "blueprint.yaml"
    parquet = file.read_text().split("parquet: true")[0].count("\n") + 1
    assert capsys.readouterr().err.splitlines() == [
        f"{file}:1:1: eks.image: empty: an image of Flink with the job runs there. Fix: set eks.image.",
        f"{file}:1:1: eks.cache: empty: no cache is made there. Fix: set eks.cache.",
        f"{file}:1:1: eks.state_class: empty: checkpoints need a volume that several nodes write to. "
        "Fix: set eks.state_class.",
        f'{file}:11:12: endpoint.api_key: "llm/keys": on EKS no role lets the job read secrets. '
        "Fix: call an endpoint without a key, or use ECS.",
        f"{file}:{parquet}:10: parquet: true: on EKS no role lets the job write to S3. "
        "Fix: set parquet: false, or use ECS.",
    ]


def write_fleet(folder: Path, zones: str) -> Path:
    """Write a fleet with those zones, and return its file."""
    file = folder / "fleet.yaml"
    pools = "orchestrator: ecs\npools: {general: {types: g6e.2xlarge, size: 0..8}}"
    file.write_text(f"name: ads\nregion: us-west-2\nzones: [{zones}]\n{pools}\n")
    return file


def test_a_fleet_with_too_few_zones_for_the_brokers_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(folder / "blueprint.yaml", "mock: {latency: 0.1s}", "url: https://llm.example.com\n  model: tiny")
    fleet = write_fleet(tmp_path, "us-west-2a, us-west-2b")
    assert main.run(["check", str(folder), "--fleet", str(fleet), "--target", "ecs"]) == 2
    assert capsys.readouterr().err == (
        f"{folder}/blueprint.yaml:1:1: aws.brokers: 3: the brokers take 3 zones, and the fleet ads has 2. "
        "Fix: add zones to the fleet.\n"
    )


@pytest.mark.parametrize(
    ("old", "new", "mistake"),
    [
        (
            "url: https://llm.example.com\n  model: tiny",
            "mock: {}",
            ':6:1: endpoint: "mock": on ECS no mock runs. Fix: set deployment: NAME, or url: https://HOST and '
            "model: NAME.",
        ),
        (
            "url: https://llm.example.com\n  model: tiny",
            "url: http://localhost:8000\n  model: tiny",
            ':9:8: endpoint.url: "http://localhost:8000": the job on ECS does not reach this machine. '
            "Fix: use an address in the fleet's network.",
        ),
        (
            "model: tiny",
            f"model: tiny\n  api_key: {{secret: {FOREIGN}}}",
            f':11:21: endpoint.api_key.secret: "{FOREIGN[:57]}...": the job on ECS reads secrets of its own region, us-west-2. '
            "Fix: use a secret of us-west-2, such as a replica of this one.",
        ),
        (
            "url: https://llm.example.com\n  model: tiny",
            "deployment: chat\n  api_key: {secret: llm/key}",
            ":10:12: endpoint.api_key: only the endpoint of a `url` takes one. Fix: remove api_key.",
        ),
        (
            "partitions: 4",
            "partitions: 2\naws: {parallelism: 3}",
            ":28:20: aws.parallelism: 3: further instances than partitions (2) get no events. "
            "Fix: raise partitions, or lower it.",
        ),
    ],
)
def test_what_aws_does_not_take_is_refused_at_its_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, mistake: str
) -> None:
    fleet = write_fleet(tmp_path, "us-west-2a, us-west-2b, us-west-2c")
    file = folder / "blueprint.yaml"
    change(file, "mock: {latency: 0.1s}", "url: https://llm.example.com\n  model: tiny")
    change(file, old, new)
    assert main.run(["check", str(folder), "--fleet", str(fleet), "--target", "ecs"]) == 2
    assert capsys.readouterr().err == f"{folder}/blueprint.yaml{mistake}\n"


def test_a_missing_program_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: None if program == "mvn" else f"/usr/bin/{program}")
    with pytest.raises(Unavailable) as missing:
        programs.install(print)
    assert str(missing.value) == (
        "mvn: not on PATH; Kafka and Flink need it. Fix: run `sudo apt-get install openjdk-17-jdk-headless maven`."
    )


def test_a_java_that_is_too_old_is_named_with_the_command_that_installs_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = subprocess.CompletedProcess([], 0, "", 'openjdk version "11.0.2" 2019-01-15\n')
    monkeypatch.setattr(shutil, "which", lambda program: f"/usr/bin/{program}")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: shown)
    with pytest.raises(Unavailable) as old:
        programs.install(print)
    assert str(old.value) == (
        "java: version 11; the job needs 17 or later. Fix: run `sudo apt-get install openjdk-17-jdk-headless maven`."
    )


def test_a_jar_that_is_not_the_pinned_one_is_refused(tmp_path: Path) -> None:
    name = programs.DIGESTS.read_text().split()[1]
    jar = tmp_path / name
    jar.parent.mkdir()
    jar.write_bytes(b"another")
    with pytest.raises(Unavailable, match=rf"^{name}: it is not the jar that .*jars\.sha256 pins\. Fix: delete it"):
        programs.check_digests(tmp_path)
