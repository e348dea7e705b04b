"""Each patch of moto: what it mends, and a control that fails when moto no longer needs it."""

from __future__ import annotations

import inspect
import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import botocore.exceptions
import pytest
from botocore.model import Shape
from moto import backends, server
from moto.core import serialize
from moto.core.responses import BaseResponse
from moto.s3.models import FakeKey
from moto.stepfunctions.parser.asl.utils import boto_client

from llm_serving.rehearsal import emulator, moto_ec2_patches, moto_patches

REGION = "us-west-2"
ROLE = f"arn:aws:iam::{emulator.ACCOUNT}:role/cluster"


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with emulator.start(tmp_path_factory.mktemp("patched")) as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def unpatched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """moto as it is."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(
            emulator,
            "build_command",
            lambda port: [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        )
        with emulator.start(tmp_path_factory.mktemp("unpatched")) as endpoint:
            yield endpoint


def create_bucket(endpoint: str, name: str) -> Any:
    s3 = emulator.create_client("s3", endpoint, REGION)
    s3.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION})
    return s3


def use_a_bucket_that_refuses_plain_http(endpoint: str) -> None:
    s3 = create_bucket(endpoint, "tls-only")
    denial = {
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:*",
        "Resource": ["arn:aws:s3:::tls-only", "arn:aws:s3:::tls-only/*"],
        "Condition": {"Bool": {"aws:SecureTransport": "false"}},
    }
    s3.put_bucket_policy(Bucket="tls-only", Policy=json.dumps({"Version": "2012-10-17", "Statement": [denial]}))
    s3.put_object(Bucket="tls-only", Key="a", Body=b"1")
    assert s3.get_object(Bucket="tls-only", Key="a")["Body"].read() == b"1"


def empty_a_bucket_whose_versioning_was_suspended(endpoint: str) -> None:
    s3 = create_bucket(endpoint, "versioned")
    s3.put_bucket_versioning(Bucket="versioned", VersioningConfiguration={"Status": "Enabled"})
    s3.put_object(Bucket="versioned", Key="a", Body=b"1")
    s3.put_object(Bucket="versioned", Key="a", Body=b"2")
    s3.delete_object(Bucket="versioned", Key="a")
    object_versions = s3.list_object_versions(Bucket="versioned")
    versions = [
        {"Key": row["Key"], "VersionId": row["VersionId"]}
        for row in object_versions["Versions"] + object_versions["DeleteMarkers"]
    ]
    assert len(versions) == 3
    s3.put_bucket_versioning(Bucket="versioned", VersioningConfiguration={"Status": "Suspended"})
    s3.delete_objects(Bucket="versioned", Delete={"Objects": versions})
    s3.delete_bucket(Bucket="versioned")


def find_the_security_group_of_a_cluster(endpoint: str) -> None:
    eks = emulator.create_client("eks", endpoint, REGION)
    created = eks.create_cluster(name="small", roleArn=ROLE, resourcesVpcConfig={"subnetIds": []})["cluster"]
    assert re.fullmatch("sg-[0-9a-f]+", created["resourcesVpcConfig"].get("clusterSecurityGroupId", ""))


def lift_the_protection_of_a_group_that_is_to_shrink(endpoint: str) -> None:
    ec2, groups = (emulator.create_client(name, endpoint, REGION) for name in ("ec2", "autoscaling"))
    image = ec2.describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
    ec2.create_launch_template(
        LaunchTemplateName="machine", LaunchTemplateData={"ImageId": image, "InstanceType": "g6e.2xlarge"}
    )
    groups.create_auto_scaling_group(
        AutoScalingGroupName="machines",
        MinSize=0,
        MaxSize=2,
        DesiredCapacity=2,
        AvailabilityZones=[f"{REGION}a"],
        LaunchTemplate={"LaunchTemplateName": "machine"},
        NewInstancesProtectedFromScaleIn=True,
    )

    def list_instances() -> list[str]:
        (group,) = groups.describe_auto_scaling_groups(AutoScalingGroupNames=["machines"])["AutoScalingGroups"]
        return [instance["InstanceId"] for instance in group["Instances"]]

    groups.set_desired_capacity(AutoScalingGroupName="machines", DesiredCapacity=0)
    instance_ids = list_instances()
    assert len(instance_ids) == 2
    groups.set_instance_protection(
        AutoScalingGroupName="machines", InstanceIds=instance_ids, ProtectedFromScaleIn=False
    )
    assert list_instances() == []


def delete_a_group_whose_instances_are_protected(endpoint: str) -> None:
    ec2, groups = (emulator.create_client(name, endpoint, REGION) for name in ("ec2", "autoscaling"))
    image = ec2.describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
    ec2.create_launch_template(
        LaunchTemplateName="forced", LaunchTemplateData={"ImageId": image, "InstanceType": "g6e.2xlarge"}
    )
    groups.create_auto_scaling_group(
        AutoScalingGroupName="forced",
        MinSize=1,
        MaxSize=1,
        AvailabilityZones=[f"{REGION}a"],
        LaunchTemplate={"LaunchTemplateName": "forced"},
        NewInstancesProtectedFromScaleIn=True,
    )
    (group,) = groups.describe_auto_scaling_groups(AutoScalingGroupNames=["forced"])["AutoScalingGroups"]
    instance_ids = [instance["InstanceId"] for instance in group["Instances"]]
    groups.delete_auto_scaling_group(AutoScalingGroupName="forced", ForceDelete=True)
    (reservation,) = ec2.describe_instances(InstanceIds=instance_ids)["Reservations"]
    assert [instance["State"]["Name"] for instance in reservation["Instances"]] == ["terminated"]


def describe_all_capacity_providers(endpoint: str) -> None:
    ecs = emulator.create_client("ecs", endpoint, REGION)
    group = f"arn:aws:autoscaling:{REGION}:{emulator.ACCOUNT}:autoScalingGroup:1:autoScalingGroupName/machines"
    for name in ("cp-a", "cp-b"):
        ecs.create_capacity_provider(name=name, autoScalingGroupProvider={"autoScalingGroupArn": group})
    (provider,) = ecs.describe_capacity_providers(capacityProviders=["cp-b"])["capacityProviders"]
    assert provider["name"] == "cp-b"
    assert [provider["name"] for provider in ecs.describe_capacity_providers()["capacityProviders"]] == ["cp-a", "cp-b"]


def list_services_after_one_was_deleted(endpoint: str) -> None:
    ecs = emulator.create_client("ecs", endpoint, REGION)
    ecs.create_cluster(clusterName="services")
    container = {"name": "x", "image": "x", "memory": 64}
    ecs.register_task_definition(family="x", containerDefinitions=[container])
    for name in ("kept", "deleted"):
        ecs.create_service(cluster="services", serviceName=name, taskDefinition="x", desiredCount=0)
    ecs.delete_service(cluster="services", service="deleted", force=True)
    arns = ecs.list_services(cluster="services")["serviceArns"]
    assert [arn.rpartition("/")[2] for arn in arns] == ["kept"]


def set_the_key_of_a_log_group(endpoint: str) -> None:
    logs = emulator.create_client("logs", endpoint, REGION)
    key = f"arn:aws:kms:{REGION}:{emulator.ACCOUNT}:key/1"
    logs.create_log_group(logGroupName="late")
    logs.associate_kms_key(logGroupName="late", kmsKeyId=key)
    (group,) = logs.describe_log_groups(logGroupNamePrefix="late")["logGroups"]
    assert group.get("kmsKeyId") == key


def check_the_definition_of_a_state_machine(endpoint: str) -> None:
    stepfunctions = emulator.create_client("stepfunctions", endpoint, REGION)
    good = {"StartAt": "End", "States": {"End": {"Type": "Succeed"}}}
    results = [
        stepfunctions.validate_state_machine_definition(definition=definition)["result"]
        for definition in (json.dumps(good), json.dumps({**good, "StartAt": 1}))
    ]
    assert results == ["OK", "FAIL"]


def list_the_versions_of_a_state_machine(endpoint: str) -> None:
    stepfunctions = emulator.create_client("stepfunctions", endpoint, REGION)
    definition = json.dumps({"StartAt": "End", "States": {"End": {"Type": "Succeed"}}})
    machine = stepfunctions.create_state_machine(name="short", definition=definition, roleArn=ROLE)
    versions = stepfunctions.list_state_machine_versions(stateMachineArn=machine["stateMachineArn"])
    assert versions["stateMachineVersions"] == []


def listen_with_a_certificate_of_the_user(endpoint: str) -> None:
    ec2 = emulator.create_client("ec2", endpoint, REGION)
    subnet_ids = [subnet["SubnetId"] for subnet in ec2.describe_subnets()["Subnets"][:2]]
    balancers = emulator.create_client("elbv2", endpoint, REGION)
    balancer = balancers.create_load_balancer(Name="routers", Subnets=subnet_ids)["LoadBalancers"][0]
    balancers.create_listener(
        LoadBalancerArn=balancer["LoadBalancerArn"],
        Port=443,
        Protocol="HTTPS",
        Certificates=[{"CertificateArn": f"arn:aws:acm:{REGION}:{emulator.ACCOUNT}:certificate/0123"}],
        DefaultActions=[{"Type": "fixed-response", "FixedResponseConfig": {"StatusCode": "200"}}],
    )


def repeat_a_call(endpoint: str) -> None:
    def create_client(invocation_id: str) -> Any:
        ec2 = emulator.create_client("ec2", endpoint, REGION)
        ec2.meta.events.register(
            "before-send.ec2", lambda request, **_: request.headers.update({"amz-sdk-invocation-id": invocation_id})
        )
        return ec2

    vpc_ids = [
        create_client(number).create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
        for number in ("one", "one", "another")
    ]
    assert vpc_ids[0] == vpc_ids[1] != vpc_ids[2]
    vpcs = create_client("look").describe_vpcs(Filters=[{"Name": "cidr", "Values": ["10.9.0.0/16"]}])["Vpcs"]
    assert {vpc["VpcId"] for vpc in vpcs} == {*vpc_ids}


CASES: Mapping[str, Callable[[str], None]] = {
    "FakeBucket.get_permission": use_a_bucket_that_refuses_plain_http,
    "FakeDeleteMarker.dispose": empty_a_bucket_whose_versioning_was_suspended,
    "EKSBackend.create_cluster": find_the_security_group_of_a_cluster,
    "AutoScalingBackend.set_instance_protection": lift_the_protection_of_a_group_that_is_to_shrink,
    "AutoScalingBackend.delete_auto_scaling_group": delete_a_group_whose_instances_are_protected,
    "EC2ContainerServiceBackend.describe_capacity_providers": describe_all_capacity_providers,
    "EC2ContainerServiceBackend.list_services": list_services_after_one_was_deleted,
    "LogsResponse.associate_kms_key": set_the_key_of_a_log_group,
    "StepFunctionResponse.validate_state_machine_definition": check_the_definition_of_a_state_machine,
    "StepFunctionResponse.list_state_machine_versions": list_the_versions_of_a_state_machine,
    "AWSCertificateManagerBackend.set_certificate_in_use_by": listen_with_a_certificate_of_the_user,
    "BaseResponse.call_action": repeat_a_call,
}


def test_every_patch_has_a_case_and_names_its_upstream_issue() -> None:
    patches = {**moto_patches.PATCHES, **moto_ec2_patches.PATCHES}
    names = {f"{owner.__name__}.{replacement.__name__}" for replacement, owner in patches.items()}
    assert names == set(CASES)
    for replacement in patches:
        text = " ".join((replacement.__doc__ or "").split())
        assert re.search(r"https://github\.com/getmoto/moto/(issues|pull)/\d+|No upstream issue found on \d{4}-", text)
        assert re.search(r"moto/\w+/\w+\.py", text)


@pytest.mark.parametrize("name", CASES)
def test_a_patch_mends_its_case(name: str, patched: str) -> None:
    CASES[name](patched)


@pytest.mark.parametrize("name", CASES)
def test_moto_without_the_patch_fails(name: str, unpatched: str) -> None:
    try:
        CASES[name](unpatched)
    except (AssertionError, botocore.exceptions.ClientError):
        return
    pytest.fail(f"moto no longer needs the patch {name}: remove it")


def test_moto_still_answers_in_several_threads_without_a_lock() -> None:
    assert "threaded=True" in inspect.getsource(server.main)
    assert "lock" not in inspect.getsource(BaseResponse.call_action).lower()


def test_others_are_answered_while_one_waits_for_a_message(patched: str) -> None:
    sqs = emulator.create_client("sqs", patched, REGION)
    queue = sqs.create_queue(QueueName="waited-for")["QueueUrl"]
    with ThreadPoolExecutor(1) as pool:
        # 20 s are the longest that SQS holds an empty answer back.
        waiting = pool.submit(sqs.receive_message, QueueUrl=queue, WaitTimeSeconds=20)
        time.sleep(1)
        sqs.send_message(QueueUrl=queue, MessageBody="a")
        assert waiting.result(60)["Messages"][0]["Body"] == "a", "others had to wait until it was empty"


class _WatchedData(io.BytesIO):
    """The data of an object, and whether its lock was held at each read."""

    def __init__(self, key: FakeKey) -> None:
        super().__init__(key.value)
        self._lock = key.lock
        self.locked: list[bool] = []

    def read(self, size: int | None = -1) -> bytes:
        self.locked.append(self._lock.locked())
        return super().read(size)


@pytest.mark.parametrize("is_patched", [False, True])
def test_an_object_is_not_read_while_its_etag_is_found(monkeypatch: pytest.MonkeyPatch, is_patched: bool) -> None:
    if is_patched:
        monkeypatch.setattr(FakeKey, "etag", property(moto_patches.find_etag))
    key = FakeKey("a", b"1", emulator.ACCOUNT, REGION)
    key._value_buffer = data = _WatchedData(key)
    assert key.etag == '"c4ca4238a0b923820dcc509a6f75849b"'
    assert set(data.locked) == {is_patched}, "moto locks it itself: remove the patch"


def test_the_names_of_services_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    names = list(backends.list_of_moto_modules())
    monkeypatch.setattr(backends, "list_of_moto_modules", backends.list_of_moto_modules)  # restored after the test
    moto_patches.keep_service_names()
    monkeypatch.setattr(os, "listdir", lambda _: [])
    assert list(backends.list_of_moto_modules()) == names
    assert {"s3", "ecs", "iam"} <= set(names)


def test_the_data_of_ec2_is_not_read_for_a_program_that_asks_for_s3_alone() -> None:
    code = (
        "import sys\n"
        "from llm_serving.rehearsal import moto_patches\n"
        "moto_patches.extend_services('key')\n"
        "from moto import backends\n"
        "backends.get_backend('s3')\n"
        "print([name for name in sys.modules if name.startswith(('moto.ec2', 'moto.stepfunctions.parser.asl'))])\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert result.stdout == "[]\n"


def test_the_keys_of_an_answers_members_are_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []

    def find_keys(_: Any, context: serialize.AttributePickerContext) -> Iterator[str]:
        found.append(context.key)
        yield context.key

    monkeypatch.setattr(serialize.XFormedAttributePicker, "get_possible_keys", find_keys)
    moto_patches.keep_keys()
    picker, shape, another = (
        serialize.XFormedAttributePicker(),
        Shape("A", {"type": "string"}),
        Shape("A", {"type": "string"}),
    )
    for value, key, member in [({"a": 1}, "a", shape), ({"a": 2}, "a", shape), ({"b": 3}, "b", shape)]:
        assert picker(serialize.AttributePickerContext(value, key, member)) == value[key]
    assert found == ["a", "b"]
    picker(serialize.AttributePickerContext({"a": 1}, "a", another))
    picker(serialize.AttributePickerContext(SimpleNamespace(a=1), "a", shape))
    assert found == ["a", "b", "a", "a"], "these may keep it elsewhere"


def test_state_machines_share_a_client_of_each_service_that_has_the_access_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boto_client, "boto3", boto_client.boto3)  # restored after the test
    moto_patches.sign_calls_of_state_machines("key-of-the-guard")
    clients = [
        boto_client.boto_client_for("us-west-2", "sqs"),
        boto_client.boto_client_for("us-west-2", "sqs"),
        boto_client.boto_client_for("us-west-2", "events"),
        boto_client.boto_client_for("us-east-1", "sqs"),
    ]
    assert clients[0] is clients[1]
    assert [(client.meta.service_model.service_name, client.meta.region_name) for client in clients[1:]] == [
        ("sqs", "us-west-2"),
        ("events", "us-west-2"),
        ("sqs", "us-east-1"),
    ]
    assert {client._request_signer._credentials.access_key for client in clients} == {"key-of-the-guard"}
