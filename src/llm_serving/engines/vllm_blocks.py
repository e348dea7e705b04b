"""Blocks of vLLM's KV cache: into how many it divides a cache, and how many a request takes."""

from __future__ import annotations

from typing import NamedTuple

from llm_serving.catalog.architecture import Architecture
from llm_serving.engines.memory import (
    INDEX_NUMBERS,
    VECTOR_BYTES,
    ReplicaSetup,
    compute_kv_bytes_per_token,
    compute_kv_layer_bytes,
    compute_state_bytes,
    divide_up,
)

BLOCK_TOKENS = 16
"""Tokens in a block of the KV cache on GPUs (vLLM 0.32.0, `CacheConfig.DEFAULT_BLOCK_SIZE`)."""

BATCH_TOKENS = 8192
"""Of the largest step, where the setup has none."""

STATE_BLOCKS = 2
"""Of a request in a layer that keeps a state, with cached beginnings of prompts: vLLM 0.32.0, MambaSpec, `align`."""

RUNNING_STATE_BLOCKS = 1
"""Of these, what a request holds between two steps (MambaManager.remove_skipped_blocks), and all that it takes where no
beginnings are cached (models/config.py, MambaModelConfig)."""


class CacheBlocks(NamedTuple):
    """Into how many blocks vLLM divides the cache of each accelerator."""

    total: int

    of_request: int
    """Blocks that a request of the full context takes at most."""

    context: int

    @property
    def tokens(self) -> int:
        """Return tokens that the cache holds, as vLLM logs it: "KV cache size: N tokens"."""
        return self.total * self.context // self.of_request


def count_cache_blocks(
    model: Architecture, cache_bytes: int, setup: ReplicaSetup, block: int = BLOCK_TOKENS
) -> CacheBlocks:
    """Return blocks of `cache_bytes` of each accelerator, for requests of the setup's context.

    Where some layers slide, a request takes blocks for each kind of layer; the window's are few, but two batches may be
    under way on top. A draft has the same tokens in the same cache, all of its layers taken for full attention. Each
    drafted token has a state of its own in layers that keep one.
    """
    context, tensor_parallel, dtype, draft = setup.context, setup.tensor, setup.dtype, setup.draft
    batch_tokens = setup.batch.tokens if setup.batch else BATCH_TOKENS
    state_blocks = STATE_BLOCKS if setup.prefix_cache else RUNNING_STATE_BLOCKS
    if model.encoder:
        return CacheBlocks(0, 1, context)
    if model.compressed:
        return _count_compressed_blocks(model, cache_bytes, context, batch_tokens)
    token_bytes = compute_kv_layer_bytes(model, tensor_parallel, dtype)
    window_bytes = compute_kv_layer_bytes(model, tensor_parallel, dtype, has_window=True)
    draft_bytes = compute_kv_layer_bytes(draft, tensor_parallel, dtype) if draft else token_bytes
    draft_layers = draft.layers if draft else 0
    block = max(block, model.cache_block)
    block = max(block, _compute_state_block(model, block * token_bytes, block, tensor_parallel))
    if model.full_layers == model.layers:  # one block has a token's part of each layer
        model_bytes = compute_kv_bytes_per_token(model, tensor_parallel, dtype)
        block_bytes = block * (model_bytes + draft_layers * draft_bytes)
        return CacheBlocks(max(0, cache_bytes) // block_bytes, divide_up(context, block), context)
    # Blocks of all kinds have the same bytes: of smaller tokens they hold more, or are padded.
    sizes = (token_bytes, window_bytes, draft_bytes)
    page_bytes = max(sizes)
    own_block, window_block, draft_block = (block * (1 if page_bytes % size else page_bytes // size) for size in sizes)
    merged_layers = draft_layers if draft and _have_same_cache(model, draft, tensor_parallel) else 0
    # Of each kind of layers, how many there are and the blocks that a request takes in one of them.
    kinds = (
        (model.full_layers + merged_layers, divide_up(context, own_block)),
        (model.sliding_layers, _count_window_blocks(model, context, window_block, batch_tokens)),
        (model.linear_layers, state_blocks + setup.draft_tokens),
        (draft_layers - merged_layers, divide_up(context, draft_block)),
    )
    # Layers that share a block table: those of the smallest kind, or the largest if nearly as many (vLLM 0.32.0,
    # v1/core/kv_cache_utils.py, _get_kv_cache_groups_uniform_page_size).
    counts = [layers for layers, _ in kinds if layers]
    group = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
    request_blocks = sum(divide_up(layers, group) * blocks for layers, blocks in kinds)
    return CacheBlocks(max(0, cache_bytes) // (block * group * page_bytes), request_blocks, context)


def _count_compressed_blocks(model: Architecture, cache_bytes: int, context: int, batch_tokens: int) -> CacheBlocks:
    """Return blocks of a cache of DeepSeek V4, whose pages of several kinds and sizes lie in blocks of one size.

    On every GPU on which vLLM has kernels for it; with a backend chosen by hand, vectors may be in 16 bits.
    Source: vLLM 0.32.0, v1/core/kv_cache_utils.py, _get_packed_kv_cache_groups; models/deepseek_v4/attention.py and
    compressor.py, v1/attention/backends/mla/sparse_swa.py, get_kv_cache_spec.
    """
    indexed, others = model.indexed_layers, model.full_layers - model.indexed_layers
    # Of each kind that recent tokens are in: layers, bytes of a page, tokens in it, tokens that are kept.
    all_kinds = (
        (model.layers, _pad(64 * VECTOR_BYTES), 64, model.window or 0),
        (indexed, _pad(4 * 16 * model.head_dim) + _pad(4 * 16 * INDEX_NUMBERS), 4, 8),  # what becomes vectors and keys
        (others, _pad(8 * 8 * model.head_dim), 8, 128),
    )
    kinds = [kind for kind in all_kinds if kind[0]]
    # Layers in one group: so many that the last groups lack the fewest.
    group = min(
        range(max(1, indexed), model.layers + 1), key=lambda size: (sum(-kind[0] % size for kind in kinds), -size)
    )
    groups = [divide_up(layers, group) for layers, *_ in kinds]
    full_bytes = indexed * (_pad(64 * VECTOR_BYTES) + _pad(64 * model.index_bytes)) + others * _pad(2 * VECTOR_BYTES)
    widths = (divide_up(layers, count) * page for (layers, page, *_), count in zip(kinds, groups, strict=True))
    request_blocks = divide_up(context, model.cache_block) + sum(
        count * (divide_up(min(kept_tokens - 1 + 2 * batch_tokens, context), tokens) + 1)
        for (*_, tokens, kept_tokens), count in zip(kinds, groups, strict=True)
    )
    return CacheBlocks(max(0, cache_bytes) // max(full_bytes, *widths), request_blocks, context)


def _pad(page_bytes: int) -> int:
    return divide_up(page_bytes, 576) * 576


def _have_same_cache(model: Architecture, draft: Architecture, tensor_parallel: int) -> bool:
    """Return whether vLLM takes the layers of both for one kind: FullAttentionSpec of the same heads."""
    kinds = [
        (divide_up(row.full_heads[0], tensor_parallel), row.full_heads[1], row.value_dim, row.latent)
        for row in (model, draft)
    ]
    return kinds[0] == kinds[1]


def _count_window_blocks(model: Architecture, context: int, block: int, batch_tokens: int) -> int:
    """Return blocks of one request in a sliding layer, while two batches are under way."""
    if model.chunked:
        return divide_up(min((model.window or 0) + 2 * batch_tokens, context), block)
    return divide_up(min((model.window or 0) - 1 + 2 * batch_tokens, context), block) + 1


def _compute_state_block(model: Architecture, block_bytes: int, block: int, tensor_parallel: int) -> int:
    """Return tokens of a block in which a layer's state has room: vLLM makes blocks of all layers as large.

    Source: vLLM 0.32.0, platforms/interface.py, _align_hybrid_block_size; 16-bit states.
    """
    if model.state is None:
        return 0
    return block * divide_up(compute_state_bytes(model, tensor_parallel), block_bytes)
