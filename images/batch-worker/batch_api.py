"""Starts the Batch API; settings come from the environment (batch/settings.py)."""

from __future__ import annotations

import sys

from batch.api import main

if __name__ == "__main__":
    sys.exit(main())
