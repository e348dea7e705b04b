"""Print the files of Python that a start of the engine reads, one a line; fail where one of them does not import.

The image keeps their byte code, since its root is read-only: each process would compile them all again, 13 CPU-seconds
(vLLM 0.32.0). Of vLLM it is all, whose models are loaded by name.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from engine_imports import MODULES  # of this project's local engine


def main() -> None:
    for name in MODULES:
        importlib.import_module(name)
    files = {str(file) for file in Path(str(sys.modules["vllm"].__file__)).parent.rglob("*.py")}
    files |= {str(module.__file__) for module in [*sys.modules.values()] if getattr(module, "__file__", None)}
    # Some modules that torch makes have names of files that do not exist.
    print("\n".join(sorted(file for file in files if file.endswith(".py") and Path(file).is_absolute())))


if __name__ == "__main__":
    main()
