"""A load whose processes run apart, as containers do, against a server with known delays and the embedded S3.

The containers are processes of this machine, on the image's own files; the embedded S3 checks no signature of a URL.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from llm_serving.aws.session import AwsSession
from llm_serving.rehearsal import emulator
from llm_serving.services.traffic import Traffic
from llm_serving.settings.errors import CheckFailed, Unavailable
from llm_serving.validation import run
from llm_serving.validation.base import LoadSource, MetricsPage
from llm_serving.validation.load.load_plan import LoadPlan
from llm_serving.validation.remote import play as remote_play
from llm_serving.validation.remote.messages import INPUTS_VARIABLE, pack_urls
from llm_serving.validation.remote.play import Containers, RemoteDrivers
from tests import known_server
from tests.images.built import ImageRunner
from tests.known_server import Behaviour
from tests.validation.conftest import TargetFactory, build_options, read_samples
from tests.validation.remote import containers
from tests.validation.remote.containers import ProcessContainers

pytestmark = pytest.mark.timeout(300)

BUCKET = "demo-results"
TRAFFIC = {"arrivals": "20/s", "requests": 60, "output_tokens": 4, "input_tokens": "20..40", "warm_up": 4}

Launch = Callable[[Sequence[str]], AbstractContextManager[Containers]]


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsSession]:
    with emulator.start(tmp_path_factory.mktemp("aws"), bare=True) as endpoint:
        session = emulator.open_session(endpoint, "us-east-1")
        session.client("s3").create_bucket(Bucket=BUCKET)
        versioning = {"Status": "Enabled"}
        session.client("s3").put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration=versioning)
        yield session


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return containers.copy_package(tmp_path_factory.mktemp("image"))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_play, "POLL_S", 0.2)
    monkeypatch.setattr(remote_play, "LEAD_S", 2.0)


@pytest.fixture
def build_source(aws: AwsSession, package: Path, tmp_path: Path) -> Callable[..., LoadSource]:
    """Makes the source whose containers are processes."""

    def build(url: str = "", launch: Launch | None = None, start_limit_s: float = 240) -> LoadSource:
        started = ProcessContainers(package, tmp_path / "containers.log")
        drivers = RemoteDrivers(aws, BUCKET, launch or started.launch_with_urls, start_limit_s)
        pages = (
            MetricsPage("worker-a", "worker", f"{url}/metrics"),
            MetricsPage("router-b", "router", f"{url}/metrics"),
        )
        return LoadSource("The load came from two containers.", play=drivers.play, pages=pages, max_processes=2)

    return build


def list_objects(aws: AwsSession) -> list[Any]:
    listed = aws.client("s3").list_object_versions(Bucket=BUCKET)
    return [*listed.get("Versions", ()), *listed.get("DeleteMarkers", ())]


@pytest.fixture
def validate(tmp_path: Path, make_target: TargetFactory) -> Callable[..., Any]:
    def _validate(url: str, source: LoadSource, slo: dict[str, Any] | None = None, **options: Any) -> Any:
        deployment = make_target(url, TRAFFIC, slo or {"ttft_ms": {"p50": 20_000}})
        return run.validate(deployment, build_options(tmp_path, load_source=source, **options))

    return _validate


def test_two_containers_send_one_load_and_leave_nothing(
    aws: AwsSession, build_source: Callable[..., LoadSource], validate: Callable[..., Any]
) -> None:
    with known_server.run_server(Behaviour(0.05, 0.01)) as url:
        report, folder = validate(url, build_source(url))
    assert report.missed == []
    assert report.requests.model_dump() == {"total": 60, "failed": 0, "by_error": {}, "planned": 60}
    assert report.duration_s < 60, "both processes start together"
    assert 50 <= report.metrics["ttft_ms"].p50 <= 20_000, "in milliseconds"
    # The engine's page was read before the load and after all of it, warm-up apart.
    assert [(replica.name, replica.requests) for replica in report.replicas] == [("worker-a", 60)]
    assert {row.metric for row in report.agreement if row.statistic == "mean"} == {"ttft_ms", "itl_ms", "e2e_ms"}
    assert report.method[0] == "The load came from two containers."
    assert sorted(sample.number for sample in read_samples(folder)) == list(range(60))
    assert {"locust.log", "locust-1.log"} <= {path.name for path in folder.iterdir()}
    assert list_objects(aws) == [], "nothing is left in the bucket, old versions included"


def test_prompts_keep_no_name_that_the_driver_has_for_its_own_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Their file was emptied in the containers where it was called requests.jsonl, as the driver's samples are."""
    (tmp_path / "requests.jsonl").write_text('{"prompt": "Hi"}')
    (tmp_path / "user.py").touch()
    traffic = Traffic.model_validate({"users": 1, "data": "requests.jsonl"})
    data = str(tmp_path / "requests.jsonl")
    plan = LoadPlan(url="http://x", models=("tiny",), traffic=traffic, data=data, folder=str(tmp_path))
    mailbox = MagicMock()
    monkeypatch.setattr(RemoteDrivers, "_open_mailbox", lambda *_: contextlib.nullcontext(mailbox))
    monkeypatch.setattr(RemoteDrivers, "_run", lambda _, load, *__, **___: load.post_inputs())
    monkeypatch.setattr(remote_play, "_unpack", lambda *_: None)
    RemoteDrivers(MagicMock(), BUCKET, MagicMock(), 1.0).play(plan, tmp_path / "user.py")
    posted, files = mailbox.post_inputs.call_args.args
    assert (posted.data, files) == ("prompts", {"user.py": "", "prompts": '{"prompt": "Hi"}'})


@pytest.mark.timeout(900)
def test_the_image_of_the_load_driver_sends_a_load(
    aws: AwsSession,
    build_source: Callable[..., LoadSource],
    validate: Callable[..., Any],
    image_runner: ImageRunner,
    tmp_path: Path,
) -> None:
    entry = image_runner.read_configuration("load-driver")["Entrypoint"]
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    command = image_runner.format_command("load-driver", entry, {"HOME": "/tmp"}, {"/inputs": inputs})
    started = ProcessContainers(tmp_path, tmp_path / "containers.log", command)

    def launch(urls: Sequence[str]) -> AbstractContextManager[Containers]:
        for index, url in enumerate(urls):
            (inputs / str(index)).write_text(url)
        return started.launch([f"/inputs/{index}" for index in range(len(urls))])

    with known_server.run_server(Behaviour(0.05, 0.01)) as url:
        report, _ = validate(url, build_source(url, launch))
    assert report.missed == []
    assert report.requests.model_dump() == {"total": 60, "failed": 0, "by_error": {}, "planned": 60}
    assert list_objects(aws) == []


def test_a_server_that_is_down_is_reported_as_from_here(
    aws: AwsSession, build_source: Callable[..., LoadSource], validate: Callable[..., Any]
) -> None:
    with pytest.raises(Unavailable, match=r"http://127.0.0.1:9 is unreachable"):
        validate("http://127.0.0.1:9", build_source())
    assert list_objects(aws) == []


def test_a_container_that_fails_ends_the_load_with_its_log(
    aws: AwsSession, build_source: Callable[..., LoadSource], validate: Callable[..., Any], tmp_path: Path
) -> None:
    user_file = tmp_path / "mine.py"
    user_file.write_text("import nothing_of_the_kind\n")
    with (
        known_server.run_server() as url,
        pytest.raises(CheckFailed, match=r"(?s)load driver . failed with exit code 1.*nothing_of_the_kind"),
    ):
        validate(url, build_source(url), user_file=user_file)
    assert list_objects(aws) == []


def test_containers_that_do_not_start_in_time_are_reported_with_their_state(
    aws: AwsSession, build_source: Callable[..., LoadSource], validate: Callable[..., Any], tmp_path: Path
) -> None:
    class Pending(ProcessContainers):
        def describe(self) -> str:
            return "2 0/3 nodes are available"

    pending = Pending(tmp_path, tmp_path / "log")
    source = build_source(launch=lambda _: pending.launch([]), start_limit_s=1)
    with pytest.raises(CheckFailed, match="did not start within 0 min: 2 0/3 nodes are available"):
        validate("http://127.0.0.1:9", source)
    assert list_objects(aws) == []


def test_an_interruption_ends_the_containers(
    aws: AwsSession,
    package: Path,
    build_source: Callable[..., LoadSource],
    validate: Callable[..., Any],
    tmp_path: Path,
) -> None:
    class Interrupted(ProcessContainers):
        def find_failure(self) -> str | None:
            if b"state-1" in b"".join(entry["Key"].encode() for entry in list_objects(aws)):
                raise KeyboardInterrupt
            return None

    running = Interrupted(package, tmp_path / "log")
    with known_server.run_server() as url, pytest.raises(KeyboardInterrupt):
        validate(url, build_source(url, running.launch_with_urls))
    assert len(running.started) == 2
    assert all(child.poll() is not None for child in running.started)
    assert list_objects(aws) == []


def test_a_container_whose_load_is_gone_ends_by_itself(aws: AwsSession, package: Path) -> None:
    url = aws.client("s3").generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": "load-tests/gone"})
    result = subprocess.run(
        [sys.executable, "-m", "llm_serving.validation.remote.relay", "0"],
        env={"PYTHONPATH": str(package), INPUTS_VARIABLE: pack_urls([url])}, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert result.returncode == 1
    assert result.stderr.startswith("the load's input is gone: the load was cancelled, or its URL expired")


def test_a_bucket_that_is_missing_is_refused_before_anything_starts(
    aws: AwsSession, tmp_path: Path, validate: Callable[..., Any]
) -> None:
    def launch(_: Sequence[str]) -> Any:
        raise AssertionError("nothing is to start")

    drivers = RemoteDrivers(aws, "demo-none", launch, 60)
    source = LoadSource("", play=drivers.play, max_processes=2)
    with pytest.raises(
        Unavailable, match=r"the results bucket demo-none does not exist. Fix: run blueprint fleet apply"
    ):
        validate("http://127.0.0.1:9", source)
