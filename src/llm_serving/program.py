"""How every program of ours ends: with an exit code, and an error as its message only, without a traceback."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable

from llm_serving.settings import os_errors
from llm_serving.settings.errors import BlueprintError, Unavailable, make_safe

DEBUG = "BLUEPRINT_DEBUG"
"""Environment variable that has the effect of --debug."""

INTERRUPTED, PIPE_CLOSED = 128 + 2, 128 + 13
"""Exit codes that shells give a program ended by Ctrl-C or a closed pipe."""

INTERNAL_ERROR = 70
"""Exit code of a fault of this program (EX_SOFTWARE of sysexits.h); 1 would read as a failed check."""


def run(main: Callable[[], int | None]) -> int:
    """Run a program's `main`, print its error if there is one, and return the exit code."""
    try:
        code = main()
        if sys.stdout:  # None where whoever started this program closed it
            sys.stdout.flush()
        return code or 0
    except KeyboardInterrupt:
        return print_error("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # Python flushes standard output at exit, which the closed pipe would refuse again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except Exception as error:
        if os.environ.get(DEBUG, "").lower() in ("1", "true", "yes", "on"):
            raise
        return _report_failure(error)


def print_error(text: str, code: int) -> int:
    """Print a message on standard error, and return the exit code."""
    print(make_safe(text), file=sys.stderr)
    return code


def convert_error(error: Exception) -> BlueprintError | None:
    """Return the error that the user sees as its message only; None of one whose fix is not known."""
    if isinstance(error, BlueprintError):
        return error
    return os_errors.convert(error) if isinstance(error, OSError) else None


def _report_failure(error: Exception) -> int:
    user_error = convert_error(error)
    if user_error:
        from llm_serving import console  # imports rich, which a program that prints plain text alone does without

        return console.print_error(user_error)
    hint = f"({DEBUG}=1 shows the traceback)"
    if isinstance(error, OSError | MemoryError):
        text = (error.strerror if isinstance(error, OSError) else None) or str(error) or "out of memory"
        if isinstance(error, shutil.Error) and isinstance(error.args[0], list):
            text = error.args[0][0][2]  # of the first file that was not copied
        prefix = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
        return print_error(f"{prefix}{text[:1].lower()}{text[1:]} {hint}", Unavailable.exit_code)
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return print_error(f"Internal error: {text[:500]} {hint}", INTERNAL_ERROR)
