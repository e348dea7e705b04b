"""What the target `local` does in its own way: supervised processes that share this machine."""

from __future__ import annotations

from llm_serving.services.environment import Conventions
from llm_serving.services.service import LOOPBACK

CONVENTIONS = Conventions(title="this machine", is_local=True, url=f"http://{LOOPBACK}:{{port}}")
