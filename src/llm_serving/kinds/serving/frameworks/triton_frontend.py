"""In Triton's image: write the repository of models, and become Triton's frontend with the page that routers ask for.

    python3 -c TEXT FILES MAIN ARGUMENTS...

FILES is JSON, each text by its path. The frontend has /health/ready only. Routers ask for /health, vLLM's 0.1.17 also
with --health-check-endpoint (called, 2026-11-27).
"""

import importlib
import json
import runpy
import sys
from pathlib import Path

for path, text in json.loads(sys.argv[1]).items():
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)

main = sys.argv[2]
sys.path.insert(0, str(Path(main).parent))  # as if Python had been called with it
observability = importlib.import_module("frontend.fastapi.routers.observability")
observability.router.add_api_route("/health", observability.ready)
sys.argv = sys.argv[2:]
runpy.run_path(main, run_name="__main__")
