"""The sample job of a batch deployment: rows whose prompts have an exact number of tokens, and rows that cannot run."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import secrets
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from llm_serving.kinds.batch.deployment import BatchDeployment
from llm_serving.settings import untrusted_json
from llm_serving.settings.errors import Unavailable
from llm_serving.validation.load import api_key, prompts
from llm_serving.validation.load.load_plan import RequestLength
from llm_serving.validation.load.prompts import PromptGenerator, TokenCosts

URL = "/v1/chat/completions"
"""Path of all rows that can run."""

_REQUEST_TIMEOUT_S = 120.0


def send(endpoint_url: str, body: bytes) -> Mapping[str, int]:
    """Send the body of a row, with the key in BLUEPRINT_API_KEY, and return the answer's `usage`.

    Raises:
        InputError: the key would leave this machine without TLS.
        Unavailable: there is no answer, or it has no usage.
    """
    headers = {"Content-Type": "application/json", **api_key.build_headers(endpoint_url)}
    request = urllib.request.Request(f"{endpoint_url}{URL}", body, headers)
    try:
        with api_key.OPENER.open(request, timeout=_REQUEST_TIMEOUT_S) as response:
            usage = untrusted_json.parse(response.read())["usage"]
            return {name: int(usage[name]) for name in ("prompt_tokens", "completion_tokens")}
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        raise Unavailable(f"{endpoint_url}{URL} returned no usage: {error}. Fix: set another endpoint.") from None


class SampleRows:
    """Makes the rows of a deployment's sample."""

    def __init__(self, deployment: BatchDeployment, costs: TokenCosts | None = None) -> None:
        """Take the tokens of words at the endpoint; without them, each word counts as one."""
        self._deployment = deployment
        self._costs = costs or TokenCosts(base=1, words=dict.fromkeys(prompts.VOCABULARY, 1))

    @classmethod
    def measure(cls, deployment: BatchDeployment) -> SampleRows:
        """Measure the tokens of words at the endpoint, unless this machine gets no answer there."""
        rows = cls(deployment)

        def count_tokens(content: str) -> int:
            return send(deployment.endpoint_url, json.dumps(rows._build_body(content, 1)).encode())["prompt_tokens"]

        if not deployment.stack:
            with contextlib.suppress(Unavailable), ThreadPoolExecutor(prompts.CONCURRENCY) as pool:
                return cls(deployment, prompts.measure_costs(count_tokens, pool.map))
        return rows

    def build(self, count: int, nonce: str) -> list[tuple[str | None, bytes]]:
        """Build a sample's lines, each with the id that its result must have; None where the row has no readable id.

        Args:
            count: number of rows that can run.
            nonce: makes the rows another run's, so that neither the job nor a cached answer is an earlier one's.
        """
        sample, chance = self._deployment.sample, random.Random(nonce)
        generator = PromptGenerator(self._costs, nonce)
        rows: list[tuple[str | None, bytes]] = []
        for number in range(count):
            input_tokens, output_tokens = chance.randint(*sample.input_tokens), chance.randint(*sample.output_tokens)
            content = generator.generate(RequestLength(input_tokens, 0, 0, output_tokens), number)
            body = self._build_body(content, output_tokens)
            row = {"custom_id": f"{nonce}-{number}", "method": "POST", "url": URL, "body": body}
            rows.append((f"{nonce}-{number}", json.dumps(row).encode() + b"\n"))
        good = [line for _, line in rows]
        for number in range(sample.bad_rows):
            position = chance.randint(1, len(rows))
            rows.insert(position, (None, _damage(good[number % len(good)], number)))
        return rows

    def write(self, count: int, file: Path) -> Path:
        """Write so many rows that can run; return the file."""
        file.write_bytes(b"".join(line for custom_id, line in self.build(count, secrets.token_hex(4)) if custom_id))
        return file

    def _build_body(self, content: str, max_tokens: int) -> dict[str, Any]:
        return {
            "model": self._deployment.sample.model or self._deployment.model,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": max_tokens,
        }


def _damage(line: bytes, number: int) -> bytes:
    """Build a row that cannot run, each of another kind than the one before."""
    row = json.loads(line)
    kinds = (
        line[: len(line) // 2].rstrip() + b"\n",
        json.dumps({**row, "custom_id": None}).encode() + b"\n",
        json.dumps({**row, "custom_id": f"bad-{number}", "url": "/v1/images"}).encode() + b"\n",
        json.dumps({**row, "custom_id": f"bad-{number}", "body": []}).encode() + b"\n",
        b'{"custom_id": "\xff"}\n',
        line,  # a doubled id
    )
    return kinds[number % len(kinds)]
