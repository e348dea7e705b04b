"""What the target `local` does in its own way: supervised processes that share this machine."""

from __future__ import annotations

from llm_serving.services.environment import LOOPBACK, Conventions

CONVENTIONS = Conventions(title="this machine", is_local=True, url=f"http://{LOOPBACK}:{{port}}")
