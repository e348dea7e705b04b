from __future__ import annotations

import pytest

from llm_serving.targets.local import log_diagnosis

# As vLLM 0.32.0 writes them, shortened.
BUCKET_MISSING = """\
(APIServer pid=16836) WARNING 11-21 04:14:21 [arg_utils.py:1945] The global random seed is set to 0.
Traceback (most recent call last):
  File "/engine/bin/vllm", line 8, in <module>
    sys.exit(main())
botocore.errorfactory.NoSuchBucket: An error occurred (NoSuchBucket) when calling the ListObjectsV2 operation
"""
UNREACHABLE = """\
Traceback (most recent call last):
  File "/engine/urllib3/connection.py", line 1
ConnectionRefusedError: [Errno 111] Connection refused

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/engine/botocore/httpsession.py", line 1
botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: "http://127.0.0.1:9/models"
"""
CUT_SHORT = """\
(EngineCore pid=17207) ERROR 11-21 04:15:01 [core.py:1510] Traceback (most recent call last):
(EngineCore pid=17207) ERROR 11-21 04:15:01 [core.py:1510]   File "/engine/file_streamer.py", line 305, in get_chunks
(EngineCore pid=17207) ERROR 11-21 04:15:01 [core.py:1510]     raise ValueError(
(EngineCore pid=17207) ERROR 11-21 04:15:01 [core.py:1510] ValueError: an unexpected number of bytes (truncated)
Process EngineCore:
Traceback (most recent call last):
  File "/engine/core.py", line 1
ValueError: an unexpected number of bytes (truncated)
Traceback (most recent call last):
  File "/engine/utils.py", line 1
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""
UNREAD = """\
[ERROR  ] [streamer/impl/batch/batch.cc:106 @ handle_error] Failed to read from file s3://b/model.safetensors ; error: x
Traceback (most recent call last):
  File "/engine/file_streamer.py", line 305, in get_chunks
ValueError: Could not receive response from libstreamer due to: b'File access error'
"""
INVALID = """\
Traceback (most recent call last):
  File "/engine/arg_utils.py", line 1
pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, Invalid repository ID or local directory specified: '/cache/eab72a9a'.
Please verify the following requirements:
"""
USAGE = """\
usage: vllm serve [model_tag] [options]
vllm serve: error: unrecognized arguments: --no-such-flag
"""


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (
            BUCKET_MISSING,
            "botocore.errorfactory.NoSuchBucket: "
            "An error occurred (NoSuchBucket) when calling the ListObjectsV2 operation",
        ),
        (
            UNREACHABLE,
            "botocore.exceptions.EndpointConnectionError: "
            'Could not connect to the endpoint URL: "http://127.0.0.1:9/models"',
        ),
        (CUT_SHORT, "ValueError: an unexpected number of bytes (truncated)"),
        (
            UNREAD,
            "ValueError: Could not receive response from libstreamer due to: b'File access error' "
            "(reading s3://b/model.safetensors)",
        ),
        (
            INVALID,
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig: "
            "Value error, Invalid repository ID or local directory specified: '/cache/eab72a9a'.",
        ),
        (USAGE, "vllm serve: error: unrecognized arguments: --no-such-flag"),
        ("INFO all is well\n", ""),
        ("", ""),
    ],
)
def test_find_cause_returns_the_line_with_the_cause(log: str, line: str) -> None:
    assert log_diagnosis.find_cause(log) == line


def test_the_tail_has_no_empty_lines() -> None:
    assert log_diagnosis.extract_tail("a\n\nb\n  \nc\n", 2) == ["b", "c"]
