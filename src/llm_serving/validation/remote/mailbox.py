"""The objects of one load in the fleet's results bucket, and the presigned URLs that containers use them by."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from botocore.config import Config
from botocore.exceptions import ClientError

from llm_serving.aws import session
from llm_serving.aws.session import AwsSession
from llm_serving.settings.errors import Unavailable
from llm_serving.validation.load.load_plan import LoadPlan
from llm_serving.validation.remote.messages import DriverInput, DriverState, ProgramInput

URL_LIFE_S = 900
"""How long a URL is valid; each is renewed long before."""


class Mailbox:
    """The objects of one load; `open_mailbox` opens one."""

    def __init__(self, client: Any, bucket: str, prefix: str) -> None:
        self._client, self._bucket, self._prefix = client, bucket, prefix

    def post_inputs(self, plan: LoadPlan, files: Mapping[str, str]) -> None:
        """Write every container's input, with new URLs."""
        for shard in range(plan.processes):
            peers = range(1, plan.processes) if shard == 0 else (0,)
            driver_input = DriverInput(
                plan=plan,
                shard=shard,
                files=dict(files),
                input_url=self.sign_input(shard),
                state_url=self._sign("put_object", f"state-{shard}.json"),
                archive_url=self._sign("put_object", f"archive-{shard}.tar.gz"),
                peer_urls={peer: self._sign("get_object", f"state-{peer}.json") for peer in peers},
            )
            self._post_input(shard, driver_input)

    def post_program(self, plan: Mapping[str, Any], results: Sequence[str]) -> None:
        """Write the input of the one container that runs another program and leaves `results`, with new URLs."""
        program_input = ProgramInput(
            plan=dict(plan),
            input_url=self.sign_input(0),
            state_url=self._sign("put_object", "state-0.json"),
            result_urls={name: self._sign("put_object", name) for name in results},
        )
        self._post_input(0, program_input)

    def _post_input(self, shard: int, container_input: DriverInput | ProgramInput) -> None:
        body = container_input.model_dump_json(exclude_none=True).encode()
        self._client.put_object(Bucket=self._bucket, Key=self._build_key(f"input-{shard}.json"), Body=body)

    def sign_input(self, shard: int, life_s: int = URL_LIFE_S) -> str:
        """Return a URL by which a container reads its input."""
        return self._sign("get_object", f"input-{shard}.json", life_s)

    def read_state(self, shard: int) -> DriverState | None:
        """Return how far a container is; None before its first word."""
        body = self._open(f"state-{shard}.json")
        return body and DriverState.model_validate_json(body.read())

    def read_archive(self, shard: int) -> bytes:
        """Return the packed folder of a container that ended; raises `Unavailable` where it is not there."""
        return bytes(self._open_existing(f"archive-{shard}.tar.gz").read())

    def fetch(self, name: str, folder: Path) -> None:
        """Write an object that a container sent to the file of its name in `folder`; raises `Unavailable` without."""
        with (folder / name).open("wb") as file:
            file.writelines(self._open_existing(name).iter_chunks())

    def empty(self) -> None:
        """Delete all objects, with their old versions."""
        pages = self._client.get_paginator("list_object_versions").paginate(Bucket=self._bucket, Prefix=self._prefix)
        for page in pages:
            entries = [*page.get("Versions", ()), *page.get("DeleteMarkers", ())]
            objects = [{"Key": entry["Key"], "VersionId": entry["VersionId"]} for entry in entries]
            if objects:
                self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": objects, "Quiet": True})

    def _sign(self, method: str, name: str, life_s: int = URL_LIFE_S) -> str:
        parameters = {"Bucket": self._bucket, "Key": self._build_key(name)}
        return str(self._client.generate_presigned_url(method, Params=parameters, ExpiresIn=life_s))

    def _open(self, name: str) -> Any:
        try:
            return self._client.get_object(Bucket=self._bucket, Key=self._build_key(name))["Body"]
        except ClientError as error:
            if session.get_error_code(error) in ("NoSuchKey", "404"):
                return None
            raise

    def _open_existing(self, name: str) -> Any:
        body = self._open(name)
        if body is None:
            uri = f"s3://{self._bucket}/{self._build_key(name)}"
            raise Unavailable(f"{uri} is missing: another program deleted it during the load. Fix: run it again.")
        return body

    def _build_key(self, name: str) -> str:
        return f"{self._prefix}{name}"


@contextlib.contextmanager
def open_mailbox(aws: AwsSession, bucket: str, prefix: str) -> Iterator[Mailbox]:
    """Open the mailbox below s3://BUCKET/PREFIX, if the caller may use it, and delete all of it after the block.

    Raises:
        Unavailable: the bucket is missing, or the caller may not use it.
    """
    # S3 presigns with its old signature by default, which a bucket encrypted by KMS refuses.
    client = aws.create_client("s3", Config(signature_version="s3v4"))
    with session.translate_errors():
        try:
            client.head_bucket(Bucket=bucket)
        except ClientError as error:
            if session.get_error_code(error) in ("404", "NoSuchBucket"):
                raise Unavailable(
                    f"the results bucket {bucket} does not exist. Fix: run blueprint fleet apply."
                ) from None
            raise
        mailbox = Mailbox(client, bucket, prefix)
        try:
            yield mailbox
        finally:
            mailbox.empty()
