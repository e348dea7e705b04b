"""Run one process of a load in a container, and copy the files by which it meets the others.

    python -m llm_serving.validation.remote.relay INPUT

INPUT is a file that holds the presigned URL of a `DriverInput`, or its index among those in `INPUTS_VARIABLE`: a URL on
the command line would be read by all who may describe the container. Needs no AWS SDK and no rights.
"""

from __future__ import annotations

import gzip
import http.client
import io
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import types
import urllib.error
import urllib.request
from pathlib import Path

from llm_serving import processes
from llm_serving.validation.load import driver_result, load_plan
from llm_serving.validation.remote.messages import INPUTS_VARIABLE, USER_FILE, DriverInput, DriverState, unpack_urls

POLL_S = 0.5
RENEW_S = 60.0
"""How often new URLs are read."""

_MEETING_FILE = re.compile(r"\.(setup|ready|start|result)(-\d+)?")
_TIMEOUT_S = 20.0
_ATTEMPTS = 5
_STOP_GRACE_S = 10.0
_LAST_LINES = 20


def main() -> None:
    """Run one process of a load; exits with its code."""
    driver_input = _fetch_input(_find_url(sys.argv[1]))
    with tempfile.TemporaryDirectory(prefix="load-") as folder:
        sys.exit(_Relay(driver_input, Path(folder)).run())


def _find_url(source: str) -> str:
    if source.isdecimal():
        return unpack_urls(os.environ[INPUTS_VARIABLE])[int(source)]
    return Path(source).read_text(encoding="utf-8").strip()


class _Relay:
    def __init__(self, driver_input: DriverInput, folder: Path) -> None:
        self._input, self._folder = driver_input, folder
        self._renewed_at = time.monotonic()
        self._received: set[str] = set()
        """Names of files that other processes wrote."""
        self._seen_peers: set[int] = set()
        self._sent = DriverState()

    def run(self) -> int:
        """Run the process to its end; return its exit code."""
        self._send(DriverState())
        self._wait_for_peers()
        command = self._prepare()
        log = self._folder / driver_result.name_part(driver_result.LOG_FILE, self._input.shard)
        with log.open("wb") as output:
            child = subprocess.Popen(command, cwd=self._folder, stdout=output, stderr=subprocess.STDOUT)
        _pass_on_stop(child)
        try:
            while child.poll() is None:
                self._exchange()
                time.sleep(POLL_S)
            self._exchange()
        finally:
            child.kill()  # whoever started the load is gone: its URLs have expired
        inputs = {driver_result.PLAN_FILE, *self._input.files, *self._received}
        _ask_s3(self._input.archive_url, _archive(self._folder, inputs))
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
        print("\n".join(lines), flush=True)
        self._send(self._sent.model_copy(update={"exit_code": child.returncode, "log": "\n".join(lines)}))
        return child.returncode

    def _wait_for_peers(self) -> None:
        """Start with the others: a process that waits for another has a time limit."""
        deadline = time.monotonic() + self._input.plan.timeout_s
        while self._seen_peers != self._input.peer_urls.keys():
            if time.monotonic() > deadline:
                sys.exit("not all drivers of the load started")
            self._receive()
            self._renew()
            time.sleep(POLL_S)

    def _prepare(self) -> list[str]:
        for name, text in self._input.files.items():
            (self._folder / name).write_text(text, encoding="utf-8")
        plan = self._input.plan
        data_file = str(self._folder / plan.data) if plan.data else None
        plan = plan.model_copy(update={"folder": str(self._folder), "data": data_file})
        (self._folder / driver_result.PLAN_FILE).write_text(plan.model_dump_json(), encoding="utf-8")
        return load_plan.build_command(plan, str(self._folder / USER_FILE), self._input.shard)

    def _exchange(self) -> None:
        self._receive()
        files = {
            path.name: path.read_text(encoding="utf-8")
            for path in sorted(self._folder.iterdir())
            if _MEETING_FILE.fullmatch(path.name) and path.name not in self._received
        }
        state = DriverState(files=files, progress=driver_result.read_progress(self._folder, self._input.shard))
        if state != self._sent:
            self._send(state)
        self._renew()

    def _send(self, state: DriverState) -> None:
        _ask_s3(self._input.state_url, state.model_dump_json().encode())
        self._sent = state

    def _receive(self) -> None:
        for peer, url in self._input.peer_urls.items():
            body = _ask_s3(url)
            if body is None:
                continue
            self._seen_peers.add(peer)
            for name, text in DriverState.model_validate_json(body).files.items():
                if _MEETING_FILE.fullmatch(name) and name not in self._received:
                    self._received.add(name)
                    processes.write_whole(self._folder / name, text)

    def _renew(self) -> None:
        if time.monotonic() - self._renewed_at > RENEW_S:
            self._input, self._renewed_at = _fetch_input(self._input.input_url), time.monotonic()


def _pass_on_stop(child: subprocess.Popen[bytes]) -> None:
    """End the process when the container is asked to end, which is never by itself."""

    def stop(number: int, _: types.FrameType | None) -> None:
        child.terminate()
        try:
            child.wait(_STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            child.kill()
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)


def _archive(folder: Path, inputs: set[str]) -> bytes:
    """Pack what the process wrote, with its hidden files, without its inputs."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as archive:
        for path in sorted(folder.iterdir()):
            if path.is_file() and path.name not in inputs:
                archive.add(path, arcname=path.name)
    return packed.getvalue()


def _fetch_input(url: str) -> DriverInput:
    body = _ask_s3(url)
    if body is None:
        sys.exit("the load's input is gone: the load was cancelled, or its URL expired before this container started")
    return DriverInput.model_validate_json(body)


def _ask_s3(url: str, body: bytes | None = None) -> bytes | None:
    """Read an object, or write one; None where there is none yet (S3 answers 403 to who may not list).

    What the network, or S3 for a moment, refuses is sent again.
    """
    headers = {} if body is None else {"Content-Type": "application/octet-stream"}
    request = urllib.request.Request(url, body, headers, method="GET" if body is None else "PUT")
    attempt = 1
    while True:
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
                return bytes(response.read())
        except (OSError, http.client.HTTPException) as error:  # the latter of an answer that breaks off
            if body is None and isinstance(error, urllib.error.HTTPError) and error.code in (403, 404):
                return None
            if attempt == _ATTEMPTS:
                raise
        time.sleep(attempt)
        attempt += 1


if __name__ == "__main__":
    main()
