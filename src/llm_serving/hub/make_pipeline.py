"""What a generated pipeline of diffusers has: a small Stable Diffusion, by the names and shapes of its tensors.

A test loads it with diffusers itself, which knows every tensor and misses none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from llm_serving.hub.tensors import Tensor, list_layer, list_norm
from llm_serving.settings import own_yaml

_CONFIGS = own_yaml.read(Path(__file__).with_name("make_pipeline.yaml"))
_UNET, _VAE, _TEXT = (_CONFIGS[f"{part}/config.json"] for part in ("unet", "vae", "text_encoder"))

PROMPT_TOKENS: int = _TEXT["max_position_embeddings"]
"""Of CLIP's text encoder, and so the longest prompt."""

_WIDTH, _CROSS, _LATENTS = _UNET["block_out_channels"][0], _UNET["cross_attention_dim"], _UNET["in_channels"]
_TIME = 4 * _WIDTH
_DECODER_WIDTH, _LEVELS = _VAE["block_out_channels"][0], len(_VAE["block_out_channels"])
_TEXT_LAYERS, _TEXT_INNER = _TEXT["num_hidden_layers"], _TEXT["intermediate_size"]


def build_configs(vocabulary: int, ids: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON files of a pipeline, by name, without the tokenizer's own.

    Args:
        vocabulary, ids: of the tokenizer: its size, and its special tokens by their names in config.json.
    """
    configs: dict[str, Any] = own_yaml.fill_values(_CONFIGS, {"vocabulary": vocabulary, **ids})
    return configs


def list_tensors(vocabulary: int) -> Mapping[str, list[Tensor]]:
    """Return the tensors of each file of weights, by its name."""
    return {
        "text_encoder/model.safetensors": list(_list_text_encoder(vocabulary)),
        "unet/diffusion_pytorch_model.safetensors": list(_list_unet()),
        "vae/diffusion_pytorch_model.safetensors": list(_list_vae()),
    }


def _list_text_encoder(vocabulary: int) -> Iterator[Tensor]:
    prefix = "text_model"
    yield Tensor(f"{prefix}.embeddings.token_embedding.weight", (vocabulary, _CROSS), 0.5)
    yield Tensor(f"{prefix}.embeddings.position_embedding.weight", (PROMPT_TOKENS, _CROSS), 0.1)
    for number in range(_TEXT_LAYERS):
        layer = f"{prefix}.encoder.layers.{number}"
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            yield from list_layer(f"{layer}.self_attn.{name}", (_CROSS, _CROSS))
        yield from list_norm(f"{layer}.layer_norm1", _CROSS)
        yield from list_layer(f"{layer}.mlp.fc1", (_TEXT_INNER, _CROSS))
        yield from list_layer(f"{layer}.mlp.fc2", (_CROSS, _TEXT_INNER))
        yield from list_norm(f"{layer}.layer_norm2", _CROSS)
    yield from list_norm(f"{prefix}.final_layer_norm", _CROSS)


def _list_unet() -> Iterator[Tensor]:
    yield from _list_conv("conv_in", _WIDTH, _LATENTS)
    yield from list_layer("time_embedding.linear_1", (_TIME, _WIDTH))
    yield from list_layer("time_embedding.linear_2", (_TIME, _TIME))
    yield from _list_residual("down_blocks.0.resnets.0", _WIDTH, _WIDTH, _TIME)
    yield from _list_transformer("down_blocks.0.attentions.0")
    yield from _list_residual("mid_block.resnets.0", _WIDTH, _WIDTH, _TIME)
    yield from _list_transformer("mid_block.attentions.0")
    yield from _list_residual("mid_block.resnets.1", _WIDTH, _WIDTH, _TIME)
    for number in range(2):  # each takes what the other half of the network computed too
        yield from _list_residual(f"up_blocks.0.resnets.{number}", _WIDTH, 2 * _WIDTH, _TIME)
        yield from _list_transformer(f"up_blocks.0.attentions.{number}")
    yield from list_norm("conv_norm_out", _WIDTH)
    yield from _list_conv("conv_out", _LATENTS, _WIDTH)


def _list_transformer(name: str) -> Iterator[Tensor]:
    block, inner = f"{name}.transformer_blocks.0", 4 * _WIDTH
    yield from list_norm(f"{name}.norm", _WIDTH)
    yield from _list_conv(f"{name}.proj_in", _WIDTH, _WIDTH, side=1)
    for attention, width in (("attn1", _WIDTH), ("attn2", _CROSS)):
        for key, columns in (("to_q", _WIDTH), ("to_k", width), ("to_v", width)):
            yield Tensor(f"{block}.{attention}.{key}.weight", (_WIDTH, columns), 1 / math.sqrt(columns))
        yield from list_layer(f"{block}.{attention}.to_out.0", (_WIDTH, _WIDTH))
    for number in (1, 2, 3):
        yield from list_norm(f"{block}.norm{number}", _WIDTH)
    yield from list_layer(f"{block}.ff.net.0.proj", (2 * inner, _WIDTH))
    yield from list_layer(f"{block}.ff.net.2", (_WIDTH, inner))
    yield from _list_conv(f"{name}.proj_out", _WIDTH, _WIDTH, side=1)


def _list_vae() -> Iterator[Tensor]:
    width, last = _DECODER_WIDTH, _LEVELS - 1
    for half, (inputs, outputs), blocks, layers, sampler in (
        ("encoder", (3, 2 * _LATENTS), "down_blocks", 1, "downsamplers"),
        ("decoder", (_LATENTS, 3), "up_blocks", 2, "upsamplers"),
    ):
        yield from _list_conv(f"{half}.conv_in", width, inputs)
        for level in range(_LEVELS):
            for number in range(layers):
                yield from _list_residual(f"{half}.{blocks}.{level}.resnets.{number}", width, width)
            if level < last:
                yield from _list_conv(f"{half}.{blocks}.{level}.{sampler}.0.conv", width, width)
        attention = f"{half}.mid_block.attentions.0"
        yield from list_norm(f"{attention}.group_norm", width)
        for name in ("to_q", "to_k", "to_v", "to_out.0"):
            yield from list_layer(f"{attention}.{name}", (width, width))
        for number in range(2):
            yield from _list_residual(f"{half}.mid_block.resnets.{number}", width, width)
        yield from list_norm(f"{half}.conv_norm_out", width)
        yield from _list_conv(f"{half}.conv_out", outputs, width)
    yield from _list_conv("quant_conv", 2 * _LATENTS, 2 * _LATENTS, side=1)
    yield from _list_conv("post_quant_conv", _LATENTS, _LATENTS, side=1)


def _list_residual(name: str, outputs: int, inputs: int, time: int = 0) -> Iterator[Tensor]:
    yield from list_norm(f"{name}.norm1", inputs)
    yield from _list_conv(f"{name}.conv1", outputs, inputs)
    if time:
        yield from list_layer(f"{name}.time_emb_proj", (outputs, time))
    yield from list_norm(f"{name}.norm2", outputs)
    yield from _list_conv(f"{name}.conv2", outputs, outputs)
    if inputs != outputs:
        yield from _list_conv(f"{name}.conv_shortcut", outputs, inputs, side=1)


def _list_conv(name: str, outputs: int, inputs: int, side: int = 3) -> Iterator[Tensor]:
    return list_layer(name, (outputs, inputs, side, side))
