"""What a generated model that sees has beyond its decoder: Qwen3-VL's tower, its tokens, its processors' files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from llm_serving.hub.tensors import Tensor, list_layer, list_norm

TOKENS = {
    "vision_start": "<|vision_start|>",
    "vision_end": "<|vision_end|>",
    "image": "<|image_pad|>",
    "video": "<|video_pad|>",
}
"""By their names in config.json, before `_token_id`."""

DECODER = "model.language_model"
"""Prefix of the decoder's tensors, where that of a model of text is `model`."""

_SPREAD = 0.02
_OUTPUT_SPREAD = 0.5
"""Of the matrices that end in the decoder: wider, so that answers depend on the picture."""

_COLOR = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}

_MIN_PIXELS, _MIN_VIDEO_PIXELS = 65_536, 4_096
"""Of the published Qwen3-VL: pixels up to which a smaller picture is enlarged, or all pictures of a video together."""

_VIDEO_PICTURES = 2
"""Of the largest video, in place of the published model's hundreds."""


def list_tensors(vision: Mapping[str, Any]) -> Iterator[Tensor]:
    """Yield the tensors of the tower, by `vision_config` of config.json."""
    hidden, merged = vision["hidden_size"], vision["hidden_size"] * vision["spatial_merge_size"] ** 2
    patch = (vision["in_channels"], vision["temporal_patch_size"], vision["patch_size"], vision["patch_size"])
    prefix = "model.visual"
    yield from list_layer(f"{prefix}.patch_embed.proj", (hidden, *patch), _SPREAD)
    yield Tensor(f"{prefix}.pos_embed.weight", (vision["num_position_embeddings"], hidden), _SPREAD)
    for number in range(vision["depth"]):
        block = f"{prefix}.blocks.{number}"
        yield from list_norm(f"{block}.norm1", hidden)
        yield from list_norm(f"{block}.norm2", hidden)
        yield from list_layer(f"{block}.attn.qkv", (3 * hidden, hidden), _SPREAD)
        yield from list_layer(f"{block}.attn.proj", (hidden, hidden), _SPREAD)
        yield from list_layer(f"{block}.mlp.linear_fc1", (vision["intermediate_size"], hidden), _SPREAD)
        yield from list_layer(f"{block}.mlp.linear_fc2", (hidden, vision["intermediate_size"]), _SPREAD)
    mergers = {"merger": hidden}
    mergers |= {f"deepstack_merger_list.{n}": merged for n in range(len(vision["deepstack_visual_indexes"]))}
    for name, norm in mergers.items():
        yield from list_norm(f"{prefix}.{name}.norm", norm)
        yield from list_layer(f"{prefix}.{name}.linear_fc1", (merged, merged), _SPREAD)
        yield from list_layer(f"{prefix}.{name}.linear_fc2", (vision["out_hidden_size"], merged), _OUTPUT_SPREAD)


def build_processor_configs(vision: Mapping[str, Any]) -> dict[str, Any]:
    """Return the files that say how pictures become tokens, by name."""
    sizes = {
        "patch_size": vision["patch_size"],
        "temporal_patch_size": vision["temporal_patch_size"],
        "merge_size": vision["spatial_merge_size"],
    }
    token_pixels = (vision["patch_size"] * vision["spatial_merge_size"]) ** 2
    max_pixels = vision["max_image_tokens"] * token_pixels
    common = {**sizes, **_COLOR, "processor_class": "Qwen3VLProcessor"}
    return {
        "preprocessor_config.json": {
            **common,
            "image_processor_type": "Qwen2VLImageProcessorFast",
            "size": {"shortest_edge": _MIN_PIXELS, "longest_edge": max_pixels},
        },
        "video_preprocessor_config.json": {
            **common,
            "video_processor_type": "Qwen3VLVideoProcessor",
            "size": {"shortest_edge": _MIN_VIDEO_PIXELS, "longest_edge": _VIDEO_PICTURES * max_pixels},
        },
    }
