"""Starts the embedded AWS: `python -m scripts.rehearsal.moto_server -H HOST -p PORT`."""

from __future__ import annotations

import botocore.session

from scripts import aws

if __name__ == "__main__":
    # moto opens a session for each of its services as it is imported, and each would read all regions anew.
    botocore.session.create_loader = aws.descriptions
    from scripts.rehearsal import mended_moto

    mended_moto.main()
