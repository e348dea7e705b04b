"""Progress of uv, by its output."""

from __future__ import annotations

from llm_serving import locked_env


def test_download_progress_is_in_bytes() -> None:
    log = "Resolved 2 packages in 5ms\nDownloading torch (500.0MiB)\nDownloading numpy (1.5GiB)\n Downloaded torch\n"
    assert locked_env.describe_download("") == "resolving packages"
    assert locked_env.describe_download(log) == "downloaded 500 of 2036 MiB of large packages"
    assert locked_env.describe_download(log + "Prepared 2 packages in 3s\n") == "installing packages"


def test_the_import_of_the_engine_is_not_reported_as_a_download() -> None:
    log = "Resolved 172 packages in 809ms\nInstalled 172 packages in 887ms\n + aiohttp==3.14.5\n"
    assert locked_env.describe_download(log) == "importing the engine and writing its byte code"
