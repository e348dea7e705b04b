"""ECS Exec: run a command in a task's container.

SSM's agent splits the command as a shell would and runs it on a terminal, so its errors are among its output and its
exit status is lost. The session ends early where its own input does. Source: aws/amazon-ssm-agent at 098ebca,
agent/session/shell/shell_unix.go, StartCommandExecutor; aws/session-manager-plugin at 61cf128, session/shellsession/
shellsession_unix.go, handleKeyboardInput.
"""

from __future__ import annotations

import shlex
import subprocess
import tempfile

from llm_serving import console, processes
from llm_serving.aws.session import AwsSession
from llm_serving.settings.errors import Unavailable


def run(
    aws: AwsSession, cluster: str, task: str, container: str, command: list[str], line: str = "", *, limit_s: float
) -> str:
    """Run a command, and return what it printed among the session's own lines.

    The AWS CLI reads the command from a file: all users of this machine read the words of its processes.

    Args:
        line: its last argument, if not empty: a terminal would cut it, and print it into the session's log.

    Raises:
        Unavailable: the session did not start, or did not end within `limit_s` seconds.
    """
    words = ["aws", "ecs", "execute-command", "--region", aws.region, "--cluster", cluster, "--task", task]
    words += ["--container", container, "--interactive", "--command"]
    with tempfile.TemporaryFile() as output, tempfile.NamedTemporaryFile("w") as file:
        file.write(shlex.join([*command, *filter(None, [line])]))
        file.flush()
        words.append(f"file://{file.name}")
        # Its input says nothing, and does not end before it does.
        with processes.spawn(words, environment=aws.child_env, stdin=subprocess.PIPE, output=output) as child:
            try:
                code = child.wait(limit_s)
            except subprocess.TimeoutExpired:
                raise Unavailable(f"ECS Exec did not end within {limit_s:.0f} s") from None
            finally:
                processes.stop(child)
        output.seek(0)
        text = output.read().decode(errors="replace")
    if code:
        raise Unavailable(f"{console.quote_command(words[:3])}: {' '.join(text.split()) or f'status {code}'}")
    return text
