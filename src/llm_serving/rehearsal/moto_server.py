"""Starts the embedded AWS: `python -m llm_serving.rehearsal.moto_server -H HOST -p PORT`."""

from __future__ import annotations

import botocore.session

from llm_serving import startup
from llm_serving.aws import session

if __name__ == "__main__":
    startup.defer_garbage_collection()
    # moto opens a session for each of its services as it is imported, and each would read all regions anew.
    botocore.session.create_loader = session.create_data_loader
    from llm_serving.rehearsal import moto_patches

    moto_patches.main()
