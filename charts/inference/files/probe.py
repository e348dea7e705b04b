"""Send one request to a server and exit with 0 if it answers: the probe of every target.

    python3 probe.py URL BODY SECONDS

BODY is JSON, sent with POST; the path of URL decides which field of the response holds the answer. With an empty BODY
the program sends GET, and status 200 is enough. VLLM_API_KEY, where set, is sent as the bearer token.

Containers run this file as it is: it supports every Python that engines bring and imports the standard library only.
src/llm_serving/targets/probe.py is a link to charts/inference/files/probe.py.
"""

import http.client
import json
import os
import sys
import urllib.error
import urllib.request

ANSWER_FIELDS = {"completions": "choices", "embeddings": "data", "rerank": "results", "score": "data"}
"""Field that holds the answer, by the last segment of the path, in the OpenAI and Cohere APIs.

On any other path one of these fields is enough.
"""


def request_answer(url: str, body: str, seconds: float) -> str:
    """Return why there is no answer; empty if there is one."""
    headers = {"Content-Type": "application/json"}
    if os.environ.get("VLLM_API_KEY"):
        headers["Authorization"] = "Bearer " + os.environ["VLLM_API_KEY"]
    request = urllib.request.Request(url, data=body.encode() or None, headers=headers)
    try:
        payload = _send(request, seconds)
    except (OSError, ValueError, http.client.HTTPException) as error:
        return str(error)
    if not body:
        return ""
    field = ANSWER_FIELDS.get(url.rpartition("/")[2])
    fields = [field] if field else list(ANSWER_FIELDS.values())
    has_answer = isinstance(payload, dict) and any(payload.get(name) for name in fields)
    return "" if has_answer else "no answer in " + json.dumps(payload)[:500]


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is an error: the key would go along, to any host."""

    def redirect_request(self, *_: object) -> None:
        """Follow none."""


def _send(request: urllib.request.Request, seconds: float) -> object:
    """Return the response: parsed JSON of a POST, nothing of a GET."""
    # No proxy: the server is on this machine or in this network, whatever the environment says.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), NoRedirects)
    try:
        with opener.open(request, timeout=seconds) as response:
            return json.load(response) if request.data else None
    except urllib.error.HTTPError as error:
        raise OSError(f"{error}: {error.read(500).decode(errors='replace')}") from None


if __name__ == "__main__":
    reason = request_answer(sys.argv[1], sys.argv[2], float(sys.argv[3]))
    sys.exit(sys.argv[1] + ": " + reason if reason else 0)
