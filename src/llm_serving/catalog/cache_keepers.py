"""What keeps cached prompts in place of the engine: rows of cache_keepers.yaml."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from llm_serving.settings import own_yaml
from llm_serving.settings.plain import PlainData

CACHE_KEEPERS_FILE = Path(__file__).with_name("cache_keepers.yaml")


class CacheKeeper(PlainData):
    """What keeps cached prompts in place of the engine."""

    source: str
    read_on: str
    title: str
    tiers: tuple[str, ...]
    targets: tuple[str, ...] = ()
    """Targets that it runs on; empty where it runs on all."""

    server_bytes: int = 0
    """Memory of its server beside each engine, without the prompts that it holds; 0 where it has none."""

    master: str = ""
    """End of the name of the process that knows where all replicas have prompts; empty where there is none."""

    master_port: int = 0
    master_bytes: int = 0
    """Its memory with an empty pool."""

    master_block_bytes: int = 0
    """Its memory for each block of tokens in the pool."""

    names_lack_command: bool = False
    """Whether its own names of prompts do not even hold how a model is split."""

    reasons: Mapping[Literal["target", "other_tiers", "adapters", "nodes", "no_accelerators"], str]
    """Why it does not work with what a deployment asks for; with {role}, {pool} and {target}."""

    def runs_on(self, target: str) -> bool:
        return not self.targets or target in self.targets


@functools.cache
def load_cache_keepers() -> Mapping[str, CacheKeeper]:
    """Return all that keep cached prompts in place of the engine, by name."""
    return own_yaml.read_rows(CACHE_KEEPERS_FILE, CacheKeeper)


def suggest_cache_keepers(is_fitting: Callable[[CacheKeeper], bool]) -> str:
    """Return the words of a fix that names others which keep cached prompts; empty where none fits."""
    names = [name for name, row in load_cache_keepers().items() if is_fitting(row)]
    return f"set by: {' or '.join(names)}" if names else ""
