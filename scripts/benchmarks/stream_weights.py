"""The part of scripts/benchmarks/weights.py that runs in the engine's environment and imports nothing of this project.

    python stream_weights.py s3://BUCKET/KEY...

Streams safetensors files into memory, without an engine, and writes JSON: `seconds`, and `cpu_s` of this process.
"""

from __future__ import annotations

import json
import sys
import time

from runai_model_streamer import SafetensorsStreamer

if __name__ == "__main__":
    start, cpu_start = time.monotonic(), time.process_time()
    with SafetensorsStreamer() as streamer:
        streamer.stream_files(sys.argv[1:], None, "cpu", False)
        for _name, _tensor in streamer.get_tensors():
            pass
    print(json.dumps({"seconds": time.monotonic() - start, "cpu_s": time.process_time() - cpu_start}))
