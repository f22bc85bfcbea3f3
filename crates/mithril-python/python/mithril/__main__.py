"""The `mithril` command: `python -m mithril`."""

from __future__ import annotations

import sys

from mithril import _mithril


def main() -> int:
    """Run the command with the arguments of the program."""
    return _mithril.run_cli(["mithril", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
