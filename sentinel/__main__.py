"""Entry point of ``python -m sentinel``; light, because every child process imports it."""

import os
import sys


def main() -> int:
    """Run the command line and return its exit code."""
    try:
        from sentinel.cli.main import run_command_line
    except KeyboardInterrupt:  # nothing has begun
        return 130
    return run_command_line(sys.argv[1:])


if __name__ == "__main__":
    # The working directory, in which neither `sentinel` nor a daemon searches modules.
    if not sys.flags.safe_path and sys.path[0] != os.path.dirname(os.path.dirname(__file__)):  # noqa: PTH120 - pathlib is slow to import
        del sys.path[0]
    sys.exit(main())
