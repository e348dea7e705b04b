"""Bytes of one matrix as quantized checkpoints store it, by the shapes of their tensors."""

from __future__ import annotations

from typing import Any

import pytest

from llm_serving.catalog import quantizations
from llm_serving.catalog.quantizations import UnknownSchemeError

ROWS, COLUMNS = 14336, 4096
NUMBERS = ROWS * COLUMNS


def _build_compressed(form: str, inputs: Any = None, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}}


@pytest.mark.parametrize(
    ("settings", "expected"),
    # AWQ: qweight, scales and qzeros of vLLM 0.32.0, quantization/awq.py. The settings are those of Qwen's checkpoints.
    [
        (
            {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True},
            NUMBERS // 2 + COLUMNS // 128 * ROWS * 2 + COLUMNS // 128 * ROWS // 2,
        ),
        # GPTQ: the same, and g_idx.
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True},
            NUMBERS // 2 + COLUMNS // 128 * ROWS * 2 + COLUMNS // 128 * ROWS // 2 + COLUMNS * 4,
        ),
        (
            {"quant_method": "gptq", "bits": 8, "group_size": -1},
            NUMBERS + ROWS * 2 + ROWS + COLUMNS * 4,
        ),
        # compressed-tensors: weight_packed, weight_scale, weight_shape, as of Kimi-K2.
        (
            _build_compressed(
                "pack-quantized", num_bits=4, type="int", strategy="group", group_size=32, symmetric=True
            ),
            NUMBERS // 2 + COLUMNS // 32 * ROWS * 2 + 16,
        ),
        (
            _build_compressed(
                "pack-quantized", num_bits=4, type="int", group_size=128, symmetric=False, actorder="group"
            ),
            NUMBERS // 2 + COLUMNS // 128 * ROWS * 2 + COLUMNS // 128 * ROWS // 2 + COLUMNS * 4 + 16,
        ),
        # weight and weight_scale of RedHatAI's FP8-dynamic, and with a scale for the inputs.
        (
            _build_compressed("float-quantized", {"dynamic": True}, num_bits=8, type="float", strategy="channel"),
            NUMBERS + ROWS * 2,
        ),
        (
            _build_compressed("float-quantized", {"dynamic": False}, num_bits=8, type="float", strategy="tensor"),
            NUMBERS + 2 + 2,
        ),
        (
            _build_compressed("nvfp4-pack-quantized", {"dynamic": "local"}, num_bits=4, type="float", group_size=16),
            NUMBERS // 2 + NUMBERS // 16 + 8,
        ),
        ({"quant_method": "fbgemm_fp8"}, NUMBERS + ROWS * 4),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, NUMBERS + ROWS // 128 * COLUMNS // 128 * 4),
        ({"quant_method": "fp8", "activation_scheme": "static"}, NUMBERS + 4 + 4),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, NUMBERS // 2 + NUMBERS // 16 + 8),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, NUMBERS + 4 + 4),
        # vLLM 0.32.0, quantization/modelopt.py: what each `create_weights` registers, and weight_scale in float32.
        ({"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"}, NUMBERS // 2 + NUMBERS // 16 + 4),
        ({"quant_method": "modelopt", "quant_algo": "MXFP8"}, NUMBERS + NUMBERS // 32),
        ({"quant_method": "modelopt", "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}, NUMBERS + ROWS * 4),
        ({"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}, NUMBERS + ROWS // 128 * COLUMNS // 128 * 4),
        ({"quant_method": "mxfp4"}, NUMBERS // 2 + NUMBERS // 32),
    ],
)
def test_a_matrix_takes_the_bytes_of_its_tensors(settings: dict[str, Any], expected: int) -> None:
    scheme = quantizations.parse(settings)
    assert scheme
    assert scheme.compute_bytes(ROWS, COLUMNS) == expected


def test_blocks_that_the_matrix_does_not_fill_have_a_scale_all_the_same() -> None:
    scheme = quantizations.parse({"quant_method": "fp8", "weight_block_size": [128, 128]})
    assert scheme
    assert scheme.compute_bytes(576, 7168) == 576 * 7168 + 5 * 56 * 4


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"quant_method": "bitsandbytes"}, 'quantization_config.quant_method: "bitsandbytes"'),
        ({"quant_method": "modelopt", "quant_algo": "W4A8"}, 'quantization_config.quant_algo: "W4A8"'),
        ({"quant_method": "fp8", "quant_algo": "NVFP4"}, 'quantization_config.quant_algo: "NVFP4"'),
        ({"quant_method": "gptq", "bits": 3}, "quantization_config.bits: 3"),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"a": {}, "b": {}}},
            "quantization_config.config_groups: 2 of them, or sparse",
        ),
    ],
)
def test_a_form_of_unknown_size_is_refused_by_its_key(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(UnknownSchemeError) as error:
        quantizations.parse(settings)
    assert error.value.key == key


def test_weights_as_they_were_trained_have_no_scheme() -> None:
    assert quantizations.parse(None) is None
    assert quantizations.parse({}) is None
