"""moto's own server with patches, each of which names its upstream issue; seen in moto 5.2.5.

`tests/rehearsal/test_moto_patches.py` runs every case against moto without the patches too, and fails for a patch that
moto no longer needs.
"""

from __future__ import annotations

import functools
import json
import os
import string
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import boto3
from cheroot import wsgi
from cheroot.server import HTTPConnection, HTTPRequest
from moto import backends, server
from moto.core import responses
from moto.core.config import default_user_config
from moto.core.responses import ActionResult, BaseResponse
from moto.core.serialize import AttributePickerContext, XFormedAttributePicker
from moto.eks.models import Cluster, EKSBackend
from moto.iam.access_control import IAMPolicy, PermissionResult
from moto.logs.responses import LogsResponse
from moto.moto_api._internal.moto_random import MotoRandom
from moto.moto_server import werkzeug_app
from moto.s3.models import FakeBucket, FakeDeleteMarker, FakeKey
from moto.sqs import models as sqs_models
from moto.sqs.models import Queue
from moto.stepfunctions.responses import StepFunctionResponse

from llm_serving.rehearsal import emulator
from llm_serving.rehearsal.loopback_guard import LoopbackGuard

_MAX_REQUESTS = 100
"""Answered at once; one that waits for a message of a queue takes a place as long as it waits."""

_IDLE_S = 3600
"""Longest time that a connection stays open without a request; a client's next one may meet its end."""

_WITHOUT_TLS = {"Bool": {"aws:SecureTransport": "false"}}


def get_permission(bucket: FakeBucket, action: str, resource: str) -> PermissionResult:
    """Return the decision of the bucket's policy on an action for a request that came over TLS.

    moto takes a denial under a condition for an unconditional one. https://github.com/getmoto/moto/issues/5820 is about
    these; none about aws:SecureTransport found on 2026-11-22 (moto/s3/models.py, moto/iam/access_control.py).
    """
    if bucket.policy is None:
        return PermissionResult.NEUTRAL
    policy = json.loads(bucket.policy)
    applicable = [
        statement for statement in _ensure_list(policy["Statement"]) if statement.get("Condition") != _WITHOUT_TLS
    ]
    if not applicable:
        return PermissionResult.NEUTRAL
    return IAMPolicy(json.dumps({**policy, "Statement": applicable})).is_action_permitted(action, resource)


def _ensure_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def dispose(_: FakeDeleteMarker) -> None:
    """Release nothing: a delete marker has no data.

    moto fails at the first delete marker of a bucket whose versioning was suspended, as Terraform's destroy does.
    https://github.com/getmoto/moto/issues/5937 introduced dispose(); none found on 2026-11-22 (moto/s3/models.py).
    """


_create_cluster = EKSBackend.create_cluster


def create_cluster(backend: EKSBackend, *args: Any, **settings: Any) -> Cluster:
    """Return a cluster as moto makes it, with the id of a security group.

    EKS creates one for a cluster's nodes. No upstream issue found on 2026-11-22 (moto/eks/models.py, create_cluster).
    """
    # Which reads EC2's data; see `extend_services`.
    from moto.ec2.utils import random_security_group_id

    cluster: Cluster = _create_cluster(backend, *args, **settings)
    cluster.resources_vpc_config.setdefault("clusterSecurityGroupId", random_security_group_id())
    return cluster


def associate_kms_key(response: LogsResponse) -> str:
    """Set the key of a log group that exists.

    moto takes a key at the group's creation only. No upstream issue found on 2026-11-22 (moto/logs/responses.py).
    """
    name = response._get_param("logGroupName")
    response.logs_backend.groups[name].kms_key_id = response._get_param("kmsKeyId")
    return "{}"


def validate_state_machine_definition(response: StepFunctionResponse) -> ActionResult:
    """Say whether moto's own parser of the Amazon States Language takes a definition.

    The AWS provider asks before it makes a state machine. No upstream issue found on 2026-11-23
    (moto/stepfunctions/responses.py).
    """
    # Its grammar takes a second to import, and few rehearsals have a state machine.
    from moto.stepfunctions.parser.asl.parse.asl_parser import AmazonStateLanguageParser, ASLParserException

    try:
        AmazonStateLanguageParser.parse(response._get_param("definition"))
    except ASLParserException as error:
        diagnostic = {"severity": "ERROR", "code": "SCHEMA_VALIDATION_FAILED", "message": repr(error)}
        return ActionResult({"result": "FAIL", "diagnostics": [diagnostic]})
    return ActionResult({"result": "OK", "diagnostics": []})


def list_state_machine_versions(_: StepFunctionResponse) -> ActionResult:
    """Return no version: none of our state machines publishes one.

    The AWS provider asks for them. No upstream issue found on 2026-11-23 (moto/stepfunctions/responses.py).
    """
    return ActionResult({"stateMachineVersions": []})


_call_action = BaseResponse.call_action
_lock = threading.Lock()
_results: dict[str, Any] = {}
"""Responses to calls that changed something, by the id that AWS's SDKs give to a call and keep when they repeat it."""

_READ_ACTIONS = ("Describe", "Get", "List")
_MAX_RESULTS = 1000


def call_action(response: BaseResponse) -> Any:
    """Answer one request at a time, and a repeated one as before.

    Logs service and action, since most services have the same path, and the server's own line shows no more.

    moto answers side by side on data that are not thread-safe, with a 500 now and then, and does a second time what a
    client repeats because it missed the answer. https://github.com/getmoto/moto/issues/372 and
    https://github.com/getmoto/moto/pull/7166 are about threads; none about repeated calls found on 2026-11-22
    (moto/core/responses.py).
    """
    action, invocation_id = response._get_action(), response.headers.get("Amz-Sdk-Invocation-Id")
    with _lock:
        repeated = _results.get(invocation_id)
        result = repeated or _call_action(response)
        if invocation_id and result[0] < 400 and not action.startswith(_READ_ACTIONS):
            _results[invocation_id] = result
            if len(_results) > _MAX_RESULTS:
                del _results[next(iter(_results))]
    # One write, since several threads do.
    sys.stdout.write(f"{response.service_name} {action} {result[0]}{' once more' if repeated else ''}\n")
    status, headers, body = result
    return status, dict(headers), body


_wait_for_messages = Queue.wait_for_messages


def wait_for_messages(queue: Queue, timeout: int) -> None:
    """Answer others while a client waits for a message of SQS; within `call_action`, whose lock it gives away."""
    _lock.release()
    try:
        _wait_for_messages(queue, timeout)
    finally:
        _lock.acquire()


_find_etag = FakeKey.etag.fget


def find_etag(key: FakeKey) -> str:
    """Return the ETag of an object, whose data nobody reads meanwhile.

    moto reads the data for it without the lock, from the same place in the same file: who reads the object at that time
    gets nothing, or the ETag is another's. No upstream issue found on 2026-11-30 (moto/s3/models.py, FakeKey.etag).
    """
    with key.lock:
        return str(_find_etag(key))


PATCHES: Mapping[Callable[..., Any], type] = {
    get_permission: FakeBucket,
    dispose: FakeDeleteMarker,
    create_cluster: EKSBackend,
    associate_kms_key: LogsResponse,
    validate_state_machine_definition: StepFunctionResponse,
    list_state_machine_versions: StepFunctionResponse,
    call_action: BaseResponse,
}
"""Replaced functions of the same names, each with its class of moto's."""


def keep_service_names() -> None:
    """List moto's services once; moto lists their folders anew for every request, a fifth of its CPU time."""
    names = tuple(backends.list_of_moto_modules())
    backends.list_of_moto_modules = lambda: names


def keep_names() -> None:
    """Work out once what requests name: their service, their method, attributes. It took a tenth of their CPU time.

    Ask the clock for the time of a queue's messages: moto makes two dates of it, four times a message.
    """
    sqs_models.unix_time_millis = lambda: time.time() * 1000
    sqs_models.camelcase_to_underscores = responses.camelcase_to_underscores = functools.cache(
        responses.camelcase_to_underscores
    )
    responses.method_names_from_class = functools.cache(responses.method_names_from_class)
    application = werkzeug_app.DomainDispatcherApplication
    application.get_backend_for_host = functools.cache(application.get_backend_for_host)


def get_random_string(
    random: MotoRandom, length: int = 20, include_digits: bool = True, lower_case: bool = False
) -> str:
    """Return a name as moto draws it, in one call: each answer has one of 52 letters."""
    letters = string.ascii_letters + (string.digits if include_digits else "")
    text = "".join(random.choices(letters, k=length))
    return text.lower() if lower_case else text


def keep_keys() -> None:
    """Work out once where a kind of object keeps a member of an answer, not for each object of each answer.

    That took a quarter of the CPU time of an answer with hundreds of instance types.
    """
    find_keys = XFormedAttributePicker.get_possible_keys
    keys: dict[tuple[str, Any, type], tuple[str, ...]] = {}

    def get_possible_keys(picker: XFormedAttributePicker, context: AttributePickerContext) -> tuple[str, ...]:
        place = context.key, context.shape, type(context.obj)
        if place not in keys:
            keys[place] = tuple(dict.fromkeys(find_keys(picker, context)))
        return keys[place]

    XFormedAttributePicker.get_possible_keys = get_possible_keys


def extend_services(access_key: str) -> None:
    """Patch services that few programs ask for once one is asked for.

    EC2's data alone takes 0.4 s of CPU to read, as much as all else that a program waits for that asks for S3.
    """
    get_backend = backends.get_backend

    def get_extended_backend(name: Any) -> Any:
        backend = get_backend(name)
        if "moto.ec2.models" in sys.modules:
            extend_services_of_ec2()
        if name == "stepfunctions" and access_key:
            sign_calls_of_state_machines(access_key)
        return backend

    backends.get_backend = get_extended_backend


@functools.cache
def extend_services_of_ec2() -> None:
    """Patch what comes with EC2's data, once."""
    from llm_serving.rehearsal import moto_ec2_patches

    apply(moto_ec2_patches.PATCHES)


@functools.cache
def sign_calls_of_state_machines(access_key: str) -> None:
    """Have state machines call moto with the access key that its guard requires, in place of one of moto's.

    One client of each service is for all of them; moto makes one for each call.
    """
    from moto.stepfunctions.parser.asl.utils import boto_client

    clients: dict[tuple[str, str], Any] = {}
    lock = threading.Lock()

    def get_client(*, service_name: str, region_name: str, **settings: Any) -> Any:
        with lock:
            if (service_name, region_name) not in clients:
                settings["aws_access_key_id"] = access_key
                clients[service_name, region_name] = boto3.client(service_name, region_name, **settings)
        return clients[service_name, region_name]

    boto_client.boto3 = SimpleNamespace(client=get_client)


def apply(patches: Mapping[Callable[..., Any], type]) -> None:
    """Replace moto's functions of these names."""
    for replacement, owner in patches.items():
        setattr(owner, replacement.__name__, replacement)


class Connection(HTTPConnection):
    """Takes requests that name the whole URL (RFC 9112, section 3.2.2), as those of AWS's C++ SDK do."""

    RequestHandlerClass = functools.partial(HTTPRequest, strict_mode=False)


def serve(host: str, port: int, application: Any) -> None:
    """Serve until moto's handler of signals ends this process.

    Connections stay open; moto's own server closes each after a request. Measured with tests/images/batch_worker/
    test_chunk.py, its clients included: 18 CPU-seconds in place of 29.
    """
    http_server = wsgi.Server(
        (host, port), application, numthreads=_MAX_REQUESTS, request_queue_size=_MAX_REQUESTS, timeout=_IDLE_S
    )
    http_server.ConnectionClass = Connection
    http_server.keep_alive_conn_limit = sys.maxsize
    try:
        http_server.start()
    except SystemExit:
        os._exit(0)  # its threads, which answer or wait, would be waited for


def main() -> None:
    """Serve until it is stopped, with moto's own arguments."""
    apply(PATCHES)
    Queue.wait_for_messages = wait_for_messages
    FakeKey.etag = property(find_etag)
    keep_service_names()
    keep_names()
    keep_keys()
    MotoRandom.get_random_string = get_random_string
    # By default moto only stores state machines, and runs functions in Docker.
    default_user_config["stepfunctions"]["execute_state_machine"] = True
    default_user_config["lambda"]["use_docker"] = False
    access_key = os.environ.get(emulator.ACCESS_KEY_VARIABLE, "")
    extend_services(access_key)
    server.run_simple = lambda host, port, application, **_: serve(host, port, LoopbackGuard(application, access_key))
    server.main()
