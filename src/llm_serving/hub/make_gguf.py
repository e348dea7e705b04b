"""Convert a made model into a GGUF file, the format of llama.cpp: the same numbers, tokenizer and chat template.

Only models that make_tiny.py makes: for others, llama.cpp's own convert_hf_to_gguf.py knows each architecture.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from llm_serving.catalog import models
from llm_serving.catalog.gguf import FILE
from llm_serving.hub import files, make_tiny
from llm_serving.hub.files import OnProgress
from llm_serving.settings import os_errors
from llm_serving.settings.errors import InputError

if TYPE_CHECKING:
    import numpy as np

FORMAT = "gguf"

Quantization = Literal["BF16", "Q8_0", "Q4_0"]
"""Types of the matrices, by llama.cpp's names. BF16 has the numbers of the safetensors unchanged."""

_MARKER = ".made"
"""File beside a made one: of which size and type it is."""

_NORMAL_TOKEN, _CONTROL_TOKEN, _USER_TOKEN = 1, 3, 4
"""llama.cpp's kinds of tokens: of the vocabulary, special, and added as text (`gguf.TokenType`)."""

_GPT2_SPLIT = "gpt-2"
"""llama.cpp's name of the pattern by which the made tokenizer splits a text: that of `pre_tokenizers.ByteLevel`."""


def make(
    size: make_tiny.Size, folder: Path, on_progress: OnProgress | None = None, *, quantization: Quantization = "BF16"
) -> Path:
    """Generate the model `size` as FILE in `folder` unless it exists, and return `folder`, complete or absent.

    Raises:
        InputError: `folder` has other content.
        Unavailable: the disk is full.
    """
    folder = folder.expanduser().absolute()
    recipe, marker = f"{size} {quantization} {make_tiny.RECIPE_VERSION}\n", folder / _MARKER
    if (folder / FILE).is_file() and marker.is_file() and marker.read_text() == recipe:
        return folder
    if folder.exists() and any(folder.iterdir()) and not marker.is_file():
        raise InputError(f"{folder}: it exists with other content. Fix: name a new folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as staging:
            source = make_tiny.make(size, Path(staging) / size, on_progress)
            stored_bytes = sum(file.stat().st_size for file in source.glob("*.safetensors"))
            files.check_disk_space(
                folder, stored_bytes, purpose=f"the model {size}", fix="use a folder on another disk"
            )
            draft = Path(staging) / FILE
            convert(size, source, draft, quantization)
            marker.write_text(recipe)
            draft.replace(folder / FILE)
    except OSError as error:
        raise os_errors.explain(error, folder) from None
    return folder


def convert(size: make_tiny.Size, source: Path, path: Path, quantization: Quantization) -> None:
    """Write the model `size` in the folder `source` as a GGUF file at `path`."""
    import gguf

    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH.QWEN3])
    _add_architecture(writer, size, config, quantization)
    if models.find(size).task == "embed":
        writer.add_pooling_type(gguf.PoolingType.LAST)  # as 1_Pooling/config.json of the safetensors says
    _add_tokenizer(writer, source)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config["num_hidden_layers"])
    for shard in sorted(source.glob("*.safetensors")):
        for name, values in _read_tensors(shard):
            encoding = _select_encoding(values, quantization)
            tensor_name = names.get_name(name, try_suffixes=(".weight",))
            assert tensor_name is not None, f"{name} is a tensor of Qwen3"
            writer.add_tensor(tensor_name, gguf.quantize(values, encoding), raw_dtype=encoding)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_architecture(writer: Any, name: str, config: dict[str, Any], quantization: Quantization) -> None:
    import gguf

    writer.add_name(name)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{quantization}"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])


def _add_tokenizer(writer: Any, source: Path) -> None:
    tokenizer = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    settings = json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8"))
    ids = dict(tokenizer["model"]["vocab"])
    kinds = dict.fromkeys(ids.values(), _NORMAL_TOKEN)
    for token in tokenizer["added_tokens"]:
        ids[token["content"]] = token["id"]
        kinds[token["id"]] = _CONTROL_TOKEN if token["special"] else _USER_TOKEN
    tokens = [text for text, _ in sorted(ids.items(), key=lambda item: item[1])]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_GPT2_SPLIT)
    writer.add_token_list(tokens)
    writer.add_token_types([kinds[number] for number in range(len(tokens))])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(ids[settings["eos_token"]])
    writer.add_pad_token_id(ids[settings["pad_token"]])
    writer.add_add_bos_token(False)
    writer.add_chat_template(settings["chat_template"])


def _read_tensors(shard: Path) -> list[tuple[str, np.ndarray[Any, np.dtype[np.float32]]]]:
    """Return the tensors of a safetensors file, whose 16-bit numbers are the upper halves of 32-bit ones."""
    import numpy as np
    from safetensors import deserialize

    tensors = []
    for name, tensor in deserialize(shard.read_bytes()):  # type: ignore[no-untyped-call]
        halves = np.frombuffer(tensor["data"], dtype="<u2").astype("<u4")
        tensors.append((name, (halves << 16).view("<f4").reshape(tensor["shape"])))
    return tensors


def _select_encoding(values: np.ndarray[Any, np.dtype[np.float32]], quantization: Quantization) -> Any:
    """Keep vectors in 32 bits, as llama.cpp's own converter leaves them."""
    import gguf

    return gguf.GGMLQuantizationType.F32 if values.ndim == 1 else gguf.GGMLQuantizationType[quantization]
