"""The kind `diary`: a writer puts words into a queue, and an API answers how many; for tests/test_extension.py."""

COMMANDS = ()
