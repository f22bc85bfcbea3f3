"""The `mithril` command: `python -m mithril`."""

from __future__ import annotations

import importlib
import sys

from mithril import _mithril

# Commands in Python, because they need the packages whose files they read: each module has `main(arguments) -> int`.
_IN_PYTHON = {
    "dcp": "mithril.checkpoint.torch._command",
    "deepspeed": "mithril.checkpoint.deepspeed._command",
}


def main() -> int:
    """Run the command with the arguments of the program."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in _IN_PYTHON:
        return _mithril.run_cli(["mithril", *sys.argv[1:]])
    try:
        command = importlib.import_module(_IN_PYTHON[name])
    except ModuleNotFoundError as error:
        print(f"error: `mithril {name}` needs the package `{error.name}`", file=sys.stderr)
        return 2
    code: int = command.main(sys.argv[2:])
    return code


if __name__ == "__main__":
    sys.exit(main())
