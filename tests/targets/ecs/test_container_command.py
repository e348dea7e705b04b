"""ECS Exec through a stand-in for the AWS command line, which splits the command as SSM's agent does and runs it here."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from llm_serving.aws.session import AwsSession
from llm_serving.settings.errors import Unavailable
from llm_serving.targets.ecs import container_command

# As session-manager-plugin: it gives up where its input ends, and its terminal turns a line's end into two characters.
STAND_IN = """\
#!{python}
import pathlib, select, shlex, subprocess, sys
words = sys.argv[1:]
assert words[:2] == ["ecs", "execute-command"] and "--interactive" in words, words
if select.select([sys.stdin], [], [], 0.2)[0] and not sys.stdin.read(1):
    sys.exit("Cannot perform start session: EOF")
names = ("--region", "--cluster", "--task", "--container", "--command")
options = {{name: words[words.index(name) + 1] for name in names}}
if options["--task"] == "gone":
    sys.exit("An error occurred (InvalidParameterException): the task is not running")
print("Starting session with SessionId: ecs-execute-command-1\\r")
print(options["--region"], options["--cluster"], options["--task"], options["--container"], end="\\r\\n", flush=True)
command = pathlib.Path(options["--command"].removeprefix("file://")).read_text()
output = subprocess.run(shlex.split(command), capture_output=True, text=True).stdout
print(output.replace("\\n", "\\r\\n"), end="")
print("Exiting session with sessionId: ecs-execute-command-1.")
"""


@pytest.fixture
def aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AwsSession:
    program = tmp_path / "bin" / "aws"
    program.parent.mkdir()
    program.write_text(STAND_IN.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return AwsSession("us-west-2", {})


def test_a_command_reaches_the_container_word_by_word_and_its_output_comes_back(aws: AwsSession) -> None:
    command = [sys.executable, "-c", "import sys; print(sys.argv[1:])", "a b", 'it\'s {"x": 1}', "$HOME"]
    text = container_command.run(aws, "demo", "t1", "worker", command[:-1], command[-1], limit_s=60)
    assert text.splitlines()[1:3] == ["us-west-2 demo t1 worker", "['a b', 'it\\'s {\"x\": 1}', '$HOME']"]


def test_a_session_that_does_not_start_says_why(aws: AwsSession) -> None:
    with pytest.raises(Unavailable) as error:
        container_command.run(aws, "demo", "gone", "worker", ["true"], limit_s=60)
    reason = "An error occurred (InvalidParameterException): the task is not running"
    assert str(error.value) == f"aws ecs execute-command: {reason}"


def test_a_command_that_does_not_end_is_stopped(aws: AwsSession) -> None:
    with pytest.raises(Unavailable) as error:
        container_command.run(aws, "demo", "t1", "worker", ["sleep", "60"], limit_s=2)
    assert str(error.value) == "ECS Exec did not end within 2 s"
