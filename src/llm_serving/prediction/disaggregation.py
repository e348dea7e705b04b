"""Prompts that prefill replicas read, and whose KV caches decode replicas then fetch over the network.

Source: vLLM 0.32.0, kv_connector/v1/nixl/pull_scheduler.py: decode takes the blocks of the whole prompt, fetches them,
and computes the prompt's last token again for the first one of the answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from llm_serving.catalog import step_times
from llm_serving.catalog.architecture import Architecture
from llm_serving.catalog.instances import Instance
from llm_serving.engines.memory import Split, compute_kv_bytes_per_token, count_ranks
from llm_serving.prediction.simulation import Request


def can_transfer(instance: Instance, split: Split) -> bool:
    """Return whether a replica has an EFA interface of its own, which reads the memory of the accelerators."""
    device = instance.accelerators
    if device is None or not instance.gpudirect_rdma:
        return False
    return instance.efa_interfaces * split.ranks >= count_ranks(device)


def compute_transfer_s(model: Architecture, instance: Instance, split: Split, kv_type: str) -> float:
    """Return seconds of one prompt token's cache over a replica's share of the network.

    The share that is reached of the network's rate is taken to be that of the links in a node.
    """
    assert instance.accelerators
    rank_bytes_s = instance.network_gbps * 1e9 / 8 / count_ranks(instance.accelerators)
    efficiency = step_times.load().coefficients.link_efficiency
    return compute_kv_bytes_per_token(model, split.tensor, kv_type) / (rank_bytes_s * efficiency)


def hand_over(requests: Sequence[Request], read_s: Sequence[float], token_s: float) -> Iterator[Request]:
    """Yield the requests of a decode replica in the order in which it has their caches.

    Args:
        requests: as the clients sent them.
        read_s: how long requests took in a prefill replica; the next request takes the next time.
        token_s: of the transfer of a token; the transfers to one replica follow each other.
    """
    has_all_s = 0.0
    read = zip(requests, itertools.cycle(read_s), strict=False)
    for request, seconds in sorted(read, key=lambda row: row[0].at_s + row[1]):
        has_all_s = max(has_all_s, request.at_s + seconds) + request.input_tokens * token_s
        yield request._replace(at_s=has_all_s, read_s=has_all_s - request.at_s)
