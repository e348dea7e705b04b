"""The metrics that programs publish, and what vLLM's and its router's packages say of their own."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).with_name("published_metrics.yaml")

SUFFIXES: Mapping[str, tuple[str, ...]] = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("", "_bucket", "_count", "_sum"),
    "exact": ("",),
}
"""What a page writes behind the name that the program gives a metric; `exact` are names as the page has them."""


def read() -> dict[str, Any]:
    """Programs with the source of their list and its names by kind."""
    rows: dict[str, Any] = yaml.safe_load(FILE.read_text("utf-8"))
    return rows | {"sglang": json.loads(FILE.with_name("sglang.json").read_text("utf-8"))}


def list_page_names(row: Mapping[str, Any]) -> set[str]:
    """Names as a page of the program has them, and those of whole histograms."""
    return {
        name if name.endswith(suffix) else name + suffix
        for kind, names in row["names"].items()
        for name in names
        for suffix in SUFFIXES[kind]
    }


def extract_vllm(packages: Path) -> dict[str, set[str]]:
    """Names that vLLM's sources give its metrics, by kind."""
    names: dict[str, set[str]] = {"counter": set(), "gauge": set(), "histogram": set()}
    for part in ("v1", "distributed"):
        for file in (packages / "vllm" / part).rglob("*.py"):
            text = file.read_text("utf-8")
            if '"vllm:' in text:
                for kind, name in _list_metrics(ast.parse(text)):
                    names[kind].add(name)
    return names


def _list_metrics(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        kind = re.fullmatch(r"self\._(\w+)_cls", ast.unparse(call.func))
        for keyword in call.keywords if kind else ():
            if kind and keyword.arg == "name" and isinstance(keyword.value, ast.Constant):
                yield kind[1], keyword.value.value


def extract_buckets(packages: Path) -> dict[str, list[float]]:
    """Bucket edges of vLLM's histograms of latencies, in the catalog's names."""
    tree = ast.parse((packages / "vllm/v1/metrics/buckets.py").read_text("utf-8"))
    edges = {
        node.target.id: sorted(set(ast.literal_eval(node.value)))
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(node.value, ast.Tuple)
    }
    families = {"ttft": "TIME_TO_FIRST_TOKEN", "itl": "INTER_TOKEN_LATENCY", "e2e": "REQUEST_LATENCY"}
    return {name: edges[f"{family}_BUCKETS"] for name, family in families.items()}
