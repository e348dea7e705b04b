"""The AWS workflow: what it refuses before anything is asked of AWS, and what it does where there is no account."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llm_serving.cli import main
from llm_serving.operations.plans import StackPlan
from llm_serving.settings.errors import CheckFailed, Unavailable
from llm_serving.terraform.plan import Plan, ResourceChange
from llm_serving.workflows import aws
from tests.http_handler import QuietHandler

ROOT = Path(__file__).parents[2]

FLEET = """\
name: small
region: us-west-2
zones: [us-west-2a, us-west-2b]
orchestrator: ecs
pools:
  general: {types: g6.xlarge, size: 0..1}
"""


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a right fleet.yaml, and nobody signed in."""
    monkeypatch.chdir(tmp_path)
    Path("fleet.yaml").write_text(FLEET)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def install_stand_ins(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_text("#!/bin/sh\necho v4.3.1\n")
        (folder / name).chmod(0o755)


@pytest.fixture
def expired_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An AWS that knows these credentials, and says that their time is over; all programs are there."""
    install_stand_ins(tmp_path, "aws", "session-manager-plugin")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    class Answer(QuietHandler):
        def do_GET(self) -> None:  # somebody asks whether it is the embedded AWS
            self.send_error(404)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            body = (
                b"<ErrorResponse><Error><Type>Sender</Type><Code>ExpiredToken</Code>"
                b"<Message>The security token included in the request is expired</Message></Error></ErrorResponse>"
            )
            self.send_response(403)
            self.send_header("Content-Type", "text/xml")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "was-good")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "was-good")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield
    server.shutdown()
    server.server_close()


def get_error(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code of `blueprint install`, and the last line that it said."""
    code = main.run(["install", *arguments])
    return code, capsys.readouterr().err.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--target", "eks"],
            "--target eks: the fleet of fleet.yaml has the orchestrator ecs. "
            "Fix: use --target ecs, or write orchestrator: eks or both in fleet.yaml.",
        ),
        (["--target", "gke"], '--target: "gke": there is no such target. Fix: use ecs or eks or local.'),
        (
            ["--target", "ecs", "--with", "pulumi"],
            '--with: "pulumi": there is no such tool. Fix: use cdktf, or remove --with.',
        ),
        (
            ["--target", "ecs", "--blueprint", "nowhere"],
            "--blueprint: \"nowhere\": it is neither a blueprint's folder nor a pattern's name. "
            "Fix: use a name that `blueprint list` shows.",
        ),
        (["--target", "ecs", "--fleet", "none.yaml"], "none.yaml: there is no such file"),
        (
            ["--destroy", "--rehearse", "--yes"],
            "--rehearse: it would have no effect. Fix: use it with --target eks or ecs, without --destroy, or remove it.",
        ),
        (["--with-data"], "--with-data: it would have no effect. Fix: use it with --destroy, or remove it."),
        (
            ["--with", "cdktf"],
            "--with: it would have no effect. Fix: use it with --target eks or ecs, without --destroy, or remove it.",
        ),
    ],
)
def test_an_impossible_request_is_refused_in_one_line_before_a_start(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, line = get_error(capsys, *arguments)
    assert (code, line[: len(message)]) == (2, message)
    assert not Path(".blueprint").exists()


def test_a_blueprint_without_a_template_for_the_target_is_refused_before_anything_is_rented(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("mine").mkdir()
    for name in ("blueprint.yaml", "local.conf.j2"):
        Path("mine", name).write_bytes((ROOT / "blueprints/aggregated" / name).read_bytes())
    code, line = get_error(capsys, "--target", "ecs", "--blueprint", "mine")
    expected = "mine: no template for the target ecs (ecs.*.j2). Fix: copy it from the pattern's folder, or use --target local."
    assert (code, line) == (2, expected)
    assert not Path(".blueprint").exists()


def test_a_default_pattern_that_does_not_suit_the_fleet_is_left_out_with_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("fleet.yaml").write_text(FLEET.replace("general", "other").replace("ecs", "eks"))
    assert aws.read_request("eks", Path("fleet.yaml"), None).blueprint is None
    errors = capsys.readouterr().err
    assert "Only the fleet will be created: no --blueprint is given" in errors
    assert "the fleet small has no such pool" in errors
    assert (
        "To serve: blueprint new mine --from aggregated, change mine/blueprint.yaml, and add --blueprint mine" in errors
    )
    Path("fleet.yaml").write_text(FLEET.replace("0..1", "0..2").replace("ecs", "eks"))
    assert aws.read_request("eks", Path("fleet.yaml"), None).blueprint == ROOT / "blueprints" / "aggregated"


def test_expired_credentials_are_one_line_with_the_fix(
    expired_credentials: None, capsys: pytest.CaptureFixture[str]
) -> None:
    message = "the AWS credentials have expired. Fix: sign in again (`aws sso login`)."
    assert get_error(capsys, "--target", "ecs", "--yes") == (3, message)
    assert main.run(["fleet", "plan"]) == 3
    assert capsys.readouterr().err.strip().splitlines()[-1] == message


def test_a_prompt_without_a_terminal_is_refused_before_aws_is_asked(
    expired_credentials: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", open("/dev/null"))  # noqa: SIM115, PTH123
    expected = (2, "No terminal to confirm on; pass --yes")
    assert get_error(capsys, "--target", "ecs") == expected
    assert get_error(capsys, "--destroy") == expected
    assert main.run(["fleet", "destroy"]) == 2


def test_destroy_without_credentials_says_so_and_rehearses_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    code, line = get_error(capsys, "--destroy", "--yes")
    assert code == 3
    assert line.startswith("no AWS credentials found. Fix: sign in (`aws sso login`), or set AWS_PROFILE")


def test_programs_that_a_later_step_calls_are_missed_before_anything_is_paid_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Path("fleet.yaml").write_text(FLEET.replace("ecs", "eks"))
    options = aws.read_request("eks", Path("fleet.yaml"), None)
    by_cdktf = aws.read_request("eks", Path("fleet.yaml"), None, cdktf=True)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="not on this machine's PATH: helm and aws"):
        aws._require_tools(options, is_emulated=False)
    for tools in (("helm", "aws"), ("helm", "aws", "session-manager-plugin")):
        install_stand_ins(tmp_path, *tools)
        if len(tools) == 2:
            with pytest.raises(Unavailable, match="not on this machine's PATH: session-manager-plugin"):
                aws._require_tools(options, is_emulated=False)
    aws._require_tools(options, is_emulated=False)
    Path("fleet.yaml").write_text(FLEET.replace("ecs", "eks") + "eks: {public_from: [203.0.113.0/24]}\n")
    (tmp_path / "session-manager-plugin").unlink()
    aws._require_tools(aws.read_request("eks", Path("fleet.yaml"), None), is_emulated=False)
    aws._require_tools(options, is_emulated=True)
    with pytest.raises(
        Unavailable, match=r"--with cdktf: there is no npx on this machine's PATH\. Fix: install Node\.js"
    ):
        aws._require_tools(by_cdktf, is_emulated=True)


def test_cdktf_applies_no_plan_that_is_refused_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    applied: list[Any] = []
    monkeypatch.setattr(aws, "_apply_with_cdktf", lambda *arguments: applied.append(arguments))
    address = "aws_eks_cluster.cluster"
    plan = StackPlan("eks", 1, Plan({address: ResourceChange(address, ("delete", "create"))}))
    context: Any = SimpleNamespace(document=SimpleNamespace(path="fleet.yaml"))
    with pytest.raises(CheckFailed, match=f"Terraform would replace eks: {address}"):
        aws._apply_stacks(context, [plan], cdktf=True)
    assert applied == []
