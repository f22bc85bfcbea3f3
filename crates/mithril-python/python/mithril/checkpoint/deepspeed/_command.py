"""`mithril deepspeed`: what is done with checkpoints of DeepSpeed on the command line."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mithril._mithril import MithrilError


def main(arguments: list[str]) -> int:
    """Run the command; returns its exit code: 0 done, 1 the input is at fault, 2 the command line is."""
    parser = argparse.ArgumentParser(prog="mithril deepspeed", description="Checkpoints of DeepSpeed.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser(
        "unpack",
        help="make the files of a checkpoint plain",
        description="Makes the files of a checkpoint plain again, for zero_to_fp32.py, ds_to_universal and other tools "
        "that read them. Objects in them are unpickled, as DeepSpeed does when it loads a checkpoint.",
        epilog="example: mithril deepspeed unpack run/global_step1000",
    )
    verb.add_argument("directory", metavar="TAG_DIR", type=Path, help="directory of a tag, such as run/global_step1000")
    verb.add_argument("-o", "--output", metavar="DIR", type=Path, help="write there; without it files are replaced")
    verb.add_argument("--threads", type=int, default=0, help="0, the default, is one per core")
    try:
        chosen = parser.parse_args(arguments)
    except SystemExit as exit:
        return int(exit.code or 0)
    try:
        from mithril.checkpoint.deepspeed._unpack import unpack
    except ImportError as error:
        print(f"error: this needs DeepSpeed and torch: {error}", file=sys.stderr)
        return 2
    try:
        unpack(chosen.directory, chosen.output, threads=chosen.threads, done=_report)
    except (MithrilError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _report(path: Path, before: int, after: int) -> None:
    print(f"{path}: {before} -> {after} bytes", file=sys.stderr)
