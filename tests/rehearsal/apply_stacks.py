"""Applies stacks in a process of its own and prints their outputs: FLEET DATA ENDPOINT STACK...

The embedded AWS's access key is in the environment, as the server has it.
"""

import json
import os
import sys
from pathlib import Path

from llm_serving import processes
from llm_serving.fleet.model import Fleet
from llm_serving.rehearsal import emulator, stacks
from llm_serving.settings.document import load
from llm_serving.terraform import stack_folder

if __name__ == "__main__":
    fleet, data, endpoint, *names = sys.argv[1:]
    emulator.require_access_key(endpoint, os.environ[emulator.ACCESS_KEY_VARIABLE])
    with processes.handle_interrupts():
        document = load(Path(fleet), Fleet)
        folders = stacks.prepare(document, out=Path(data) / "out", data=Path(data), stacks=names)
        program = stack_folder.find_terraform(folders, Path(data))
        outputs = stacks.apply(document, folders, program, endpoint)
    print(json.dumps(outputs))
