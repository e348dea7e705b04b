"""Streams one file of weights from S3, as the engine's loader does, and prints the names of its tensors."""

from __future__ import annotations

import importlib
import sys

with importlib.import_module("runai_model_streamer").SafetensorsStreamer() as streamer:
    streamer.stream_file(sys.argv[1])
    print("tensors:", *(name for name, _ in streamer.get_tensors()))
