"""Applies stacks in a process of its own and prints their outputs: FLEET DATA ENDPOINT STACK..."""

import json
import sys
from pathlib import Path

from llm_serving import processes
from llm_serving.fleet.model import Fleet
from llm_serving.rehearsal import stacks
from llm_serving.settings.document import load

if __name__ == "__main__":
    fleet, data, endpoint, *names = sys.argv[1:]
    with processes.handle_interrupts():
        outputs = stacks.apply(
            load(Path(fleet), Fleet), out=Path(data) / "out", data=Path(data), endpoint=endpoint, stacks=names
        )
    print(json.dumps(outputs))
