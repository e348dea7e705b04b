"""Asks a model for an answer and ends with 0 if one came: what the probes run inside the containers.

    python3 answer.py URL BODY SECONDS

Plain Python of any version that engines bring, and nothing but its standard library.
"""

import json
import os
import sys
import urllib.error
import urllib.request

ANSWER_KEYS = ("choices", "data", "results")
"""Where completions, embeddings and rankings stand in an answer of the OpenAI and Cohere APIs."""


def request_answer(url, body, seconds):
    """The reason why no answer came; empty where one did."""
    headers = {"Content-Type": "application/json"}
    if os.environ.get("VLLM_API_KEY"):
        headers["Authorization"] = "Bearer " + os.environ["VLLM_API_KEY"]
    request = urllib.request.Request(url, data=body.encode(), headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=seconds) as response:
            payload = json.load(response)
    except urllib.error.HTTPError as error:
        return f"{error}: {error.read(500).decode(errors='replace')}"
    except (OSError, ValueError) as error:
        return str(error)
    has_answer = isinstance(payload, dict) and any(payload.get(name) for name in ANSWER_KEYS)
    return "" if has_answer else "no answer in " + json.dumps(payload)[:500]


if __name__ == "__main__":
    reason = request_answer(sys.argv[1], sys.argv[2], float(sys.argv[3]))
    sys.exit(sys.argv[1] + ": " + reason if reason else 0)
