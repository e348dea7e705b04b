from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from botocore.config import Config

from llm_serving import processes
from llm_serving.rehearsal import emulator, moto_patches
from llm_serving.settings.errors import Unavailable

REGION = "us-west-2"


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with emulator.start(tmp_path_factory.mktemp("aws")) as endpoint:
        yield endpoint


def create_bucket(endpoint: str, name: str) -> Any:
    s3 = emulator.create_client("s3", endpoint, REGION)
    s3.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION})
    return s3


def build_denial(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:*",
        "Resource": [f"arn:aws:s3:::{name}", f"arn:aws:s3:::{name}/*"],
        **fields,
    }


def set_policy(s3: Any, name: str, *statements: dict[str, Any]) -> None:
    s3.put_bucket_policy(Bucket=name, Policy=json.dumps({"Version": "2012-10-17", "Statement": statements}))


WITHOUT_TLS = {"Condition": {"Bool": {"aws:SecureTransport": "false"}}}


def test_a_bucket_that_refuses_everybody_refuses(endpoint: str) -> None:
    s3 = create_bucket(endpoint, "closed")
    set_policy(s3, "closed", build_denial("closed", **WITHOUT_TLS), build_denial("closed"))
    with pytest.raises(s3.exceptions.ClientError, match="Forbidden"):
        s3.put_object(Bucket="closed", Key="a", Body=b"1")


@pytest.fixture
def make_client(endpoint: str) -> Callable[[str], Any]:
    """A client of EC2 whose calls all have the id that it is made with, as a repeated one keeps its own."""

    def make(number: str) -> Any:
        ec2 = emulator.create_client("ec2", endpoint, REGION)
        ec2.meta.events.register(
            "before-send.ec2", lambda request, **_: request.headers.update({"amz-sdk-invocation-id": number})
        )
        return ec2

    return make


def test_a_call_that_was_refused_is_tried_again(make_client: Callable[[str], Any]) -> None:
    make_client("earlier").create_key_pair(KeyName="taken")
    client = make_client("later")
    with pytest.raises(client.exceptions.ClientError, match="Duplicate"):
        client.create_key_pair(KeyName="taken")
    make_client("between").delete_key_pair(KeyName="taken")
    assert client.create_key_pair(KeyName="taken")["KeyName"] == "taken"


def test_repeated_reads_are_answered_anew(make_client: Callable[[str], Any]) -> None:
    client = make_client("reading")
    before = len(client.describe_vpcs()["Vpcs"])
    make_client("meanwhile").create_vpc(CidrBlock="10.8.0.0/16")
    assert len(client.describe_vpcs()["Vpcs"]) == before + 1


def test_requests_are_answered_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    active: list[int] = []
    max_active = 0

    def answer(_: Any) -> tuple[int, dict[str, str], str]:
        nonlocal max_active
        active.append(1)
        max_active = max(max_active, len(active))
        time.sleep(0.02)
        active.pop()
        return 200, {}, ""

    monkeypatch.setattr(moto_patches, "_call_action", answer)
    request = SimpleNamespace(_get_action=lambda: "CreateVpc", headers={}, service_name="ec2")
    with ThreadPoolExecutor(4) as threads:
        assert [response[0] for response in threads.map(moto_patches.call_action, [request] * 4)] == [200] * 4
    assert max_active == 1


def test_the_client_environment_beats_the_users_own_aws_settings(
    endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import boto3

    config = tmp_path / "config"
    config.write_text("[profile mine]\nendpoint_url = http://127.0.0.1:9\nregion = eu-west-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_PROFILE", "no-such-profile")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    for key, value in emulator.build_client_env(endpoint, REGION).items():
        monkeypatch.setenv(key, value)
    assert boto3.Session().client("sts").get_caller_identity()["Account"] == emulator.ACCOUNT
    assert boto3.Session().client("s3").meta.endpoint_url == endpoint


def test_a_client_beats_the_users_own_aws_settings(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "no-such-profile")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert emulator.create_client("sts", endpoint, REGION).get_caller_identity()["Account"] == emulator.ACCOUNT


SIGNED = "AWS4-HMAC-SHA256 Credential={}/20261125/us-west-2/s3/aws4_request, SignedHeaders=host, Signature=0"


def test_a_reset_empties_it(tmp_path: Path) -> None:
    with emulator.start(tmp_path) as endpoint:
        s3 = create_bucket(endpoint, "gone-soon")
        emulator.reset(endpoint)
        assert s3.list_buckets()["Buckets"] == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "https://page.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "page.example"}, 403),
        ({"Host": "127.0.0.1.page.example:5000"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Host": "localhost:5000", "Origin": "http://localhost:5000", "Sec-Fetch-Site": "same-origin"}, 200),
    ],
)
def test_no_web_page_empties_it(endpoint: str, headers: dict[str, str], status: int) -> None:
    s3 = create_bucket(endpoint, f"kept-{len(headers)}-{sum(map(ord, str(headers)))}")
    key = {"Authorization": SIGNED.format(emulator.get_access_key(endpoint))}
    request = urllib.request.Request(f"{endpoint}/moto-api/reset", data=b"", headers=key | headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            assert response.status == status
    except urllib.error.HTTPError as error:
        assert error.code == status
    assert bool(s3.list_buckets()["Buckets"]) == (status == 403)


KEYED = "f00dfeed" * 4


@pytest.fixture(scope="module")
def keyed_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server whose access key is known, as it is to this process's clients."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(emulator.secrets, "token_hex", lambda _: KEYED)
        with emulator.start(tmp_path_factory.mktemp("keyed")) as endpoint:
            yield endpoint


@pytest.mark.parametrize(
    ("headers", "query"),
    [
        ({}, ""),
        ({"Authorization": SIGNED.format("x")}, ""),
        ({"Authorization": SIGNED.format(emulator.DUMMY_KEY)}, ""),
        ({"Authorization": SIGNED.format(f"{KEYED}0")}, ""),
        ({"Authorization": "AWS x:signature"}, ""),
        ({"Authorization": SIGNED.format("x")}, f"?X-Amz-Credential={KEYED}%2F20261125"),
        ({}, "?X-Amz-Credential=x%2F20261125%2Fus-west-2%2Fs3%2Faws4_request"),
        ({}, "?AWSAccessKeyId=x&Signature=0"),
    ],
)
@pytest.mark.parametrize(("method", "path"), [("PUT", "models/gguf/a"), ("GET", "models"), ("POST", "moto-api/reset")])
def test_another_user_who_lacks_the_access_key_reads_writes_and_empties_nothing(
    keyed_endpoint: str, method: str, path: str, headers: dict[str, str], query: str
) -> None:
    request = urllib.request.Request(f"{keyed_endpoint}/{path}{query}", data=b"", headers=headers, method=method)
    with pytest.raises(urllib.error.HTTPError, match="403") as refusal:
        urllib.request.urlopen(request, timeout=60)
    answer = b"The embedded AWS answers only requests that are signed with its access key.\n"
    assert refusal.value.read() == answer


def test_clients_with_the_access_key_are_answered_as_the_default_account(keyed_endpoint: str) -> None:
    s3 = create_bucket(keyed_endpoint, "keyed")
    s3.put_object(Bucket="keyed", Key="a", Body=b"1")
    for version in ("s3v4", "s3"):
        signer = emulator.open_session(keyed_endpoint, REGION).create_client("s3", Config(signature_version=version))
        url = signer.generate_presigned_url("get_object", Params={"Bucket": "keyed", "Key": "a"})
        with urllib.request.urlopen(url, timeout=60) as response:
            assert response.read() == b"1", version
    assert emulator.create_client("sts", keyed_endpoint, REGION).get_caller_identity()["Account"] == emulator.ACCOUNT
    emulator.reset(keyed_endpoint)
    assert s3.list_buckets()["Buckets"] == []


def test_state_machines_call_with_the_access_key(keyed_endpoint: str) -> None:
    sqs, machines = (emulator.create_client(name, keyed_endpoint, REGION) for name in ("sqs", "stepfunctions"))
    queue = sqs.create_queue(QueueName="told")["QueueUrl"]
    send = {
        "Type": "Task",
        "Resource": "arn:aws:states:::sqs:sendMessage",
        "Parameters": {"QueueUrl": queue, "MessageBody": "a"},
        "End": True,
    }
    machine = machines.create_state_machine(
        name="tells",
        definition=json.dumps({"StartAt": "Send", "States": {"Send": send}}),
        roleArn=f"arn:aws:iam::{emulator.ACCOUNT}:role/any",
    )
    machines.start_execution(stateMachineArn=machine["stateMachineArn"])
    answers = (sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=20) for _ in range(6))
    [message] = next(answer["Messages"] for answer in answers if "Messages" in answer)
    assert message["Body"] == "a"


def test_a_request_may_name_the_whole_url_as_awss_sdk_for_cpp_does(endpoint: str) -> None:
    create_bucket(endpoint, "whole").put_object(Bucket="whole", Key="key", Body=b"0123456789")
    connection = http.client.HTTPConnection(endpoint.removeprefix("http://"), timeout=30)
    url = emulator.create_client("s3", endpoint, REGION).generate_presigned_url(
        "get_object", Params={"Bucket": "whole", "Key": "key"}
    )
    for part in ("0-3", "4-9"):  # on one connection
        connection.request("GET", url, headers={"Range": f"bytes={part}"})
        response = connection.getresponse()
        first, last = map(int, part.split("-"))
        assert (response.status, response.read()) == (206, b"0123456789"[first : last + 1])
    connection.close()


def test_it_ends_with_its_block_and_its_log_says_what_it_cannot_do(tmp_path: Path) -> None:
    with emulator.start(tmp_path, bare=True) as endpoint:
        ecs = emulator.create_client("ecs", endpoint, REGION)
        with pytest.raises(ecs.exceptions.ClientError, match="500"):
            ecs.submit_attachment_state_changes(attachments=[])
    assert not emulator.is_reachable(endpoint)
    assert "submit_attachment_state_changes action has not been implemented" in (tmp_path / "moto.log").read_text()


def test_it_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time, pathlib\n"
        "from llm_serving.rehearsal import emulator\n"
        "with emulator.start(pathlib.Path(sys.argv[1])) as endpoint:\n"
        "    print(endpoint, flush=True)\n"
        "    time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    endpoint = parent.stdout.readline().strip()
    [server] = psutil.Process(parent.pid).children()
    parent.kill()
    parent.wait(60)
    processes.wait_until(lambda: not server.is_running() or server.status() == "zombie", "the end of the server", 90)
    assert not emulator.is_reachable(endpoint)


def test_a_server_that_does_not_start_is_reported_with_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "moto.log"

    def answer_once_it_has_spoken(_: str) -> bool:
        processes.wait_until(lambda: bool(log.read_text()), "its word", 60)
        return False

    monkeypatch.setattr(emulator, "build_command", lambda _: ["sh", "-c", "echo no such port; sleep 600"])
    monkeypatch.setattr(emulator, "is_reachable", answer_once_it_has_spoken)
    monkeypatch.setattr(emulator, "_START_LIMIT_S", 0.3)
    with pytest.raises(Unavailable, match=r"not ready within 0 s; what it said is in .*moto\.log"):  # noqa: SIM117
        with emulator.start(tmp_path):
            pass
    assert log.read_text() == "no such port\n"
