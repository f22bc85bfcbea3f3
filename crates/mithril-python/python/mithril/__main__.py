"""The `mithril` command: `python -m mithril`."""

from __future__ import annotations

import importlib
import sys

from mithril import _mithril

# Commands in Python, because they need the packages whose files they read: each module has `main(arguments) -> int`.
_IN_PYTHON = {
    "deepspeed": "mithril.checkpoint.deepspeed._command",
}


def main() -> int:
    """Run the command with the arguments of the program."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in _IN_PYTHON:
        code: int = importlib.import_module(_IN_PYTHON[name]).main(sys.argv[2:])
        return code
    return _mithril.run_cli(["mithril", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
