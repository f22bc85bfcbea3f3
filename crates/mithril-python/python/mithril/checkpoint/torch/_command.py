"""`mithril dcp`: checkpoints of PyTorch's distributed runs to mithril's storage and back, and what killed ones left."""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from typing import Any

from mithril._mithril import MithrilError
from mithril.checkpoint.torch import _convert
from mithril.checkpoint.torch._clean import clean

_EXAMPLES = {
    "pack": """examples:
  mithril dcp pack run/step_1000 packed/step_1000
  mithril dcp pack run/step_1100 s3://bucket/run/step_1100 --base s3://bucket/run/step_1000 --step 1100""",
    "unpack": """examples:
  mithril dcp unpack packed/step_1000 plain/step_1000
  mithril dcp unpack s3://bucket/run/step_1000 model.safetensors --to safetensors --prefix model.""",
    "clean": """examples:
  mithril dcp clean run --dry-run
  mithril dcp clean s3://bucket/run --min-age 86400""",
}


def main(arguments: list[str]) -> int:
    """Runs the command; returns its exit code: 0 done, 1 the input is at fault, 2 the command line or the system is."""
    parsed = _parser().parse_args(arguments)
    start = time.monotonic()
    try:
        report = {"pack": _pack, "unpack": _unpack, "clean": _clean}[parsed.command](parsed)
    except MithrilError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    report["seconds"] = round(time.monotonic() - start, 3)
    if parsed.json:
        print(json.dumps(report))
    else:
        (_tell_cleaned if parsed.command == "clean" else _tell)(report)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mithril dcp",
        description="Checkpoints of torch.distributed.checkpoint: to mithril's storage, and back to torch's own.",
        epilog="\n\n".join(_EXAMPLES.values()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, summary: str) -> argparse.ArgumentParser:
        made = commands.add_parser(
            name,
            help=summary,
            description=summary,
            epilog=_EXAMPLES[name],
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        made.add_argument("--json", action="store_true", help="print one object of JSON instead of text")
        return made

    def conversion(name: str, summary: str, source: str, output: str) -> argparse.ArgumentParser:
        made = command(name, summary)
        made.add_argument("source", metavar="SOURCE", help=source)
        made.add_argument("output", metavar="OUTPUT", help=output)
        made.add_argument("--trusted", action="store_true", help="run pickles of SOURCE that may hold any code")
        made.add_argument("--threads", type=int, default=0, metavar="N", help="threads; 0, the default, is one per core")
        return made

    any_source = "a directory that torch wrote, or a checkpoint of mithril: a directory or URL"
    pack = conversion("pack", "Stores a checkpoint in mithril's storage.", any_source, "a new directory or URL")
    pack.add_argument("--base", metavar="CHECKPOINT", help="store what changed since this checkpoint of mithril")
    pack.add_argument("--step", type=int, metavar="N", help="training step, which `latest` orders by")
    pack.add_argument("--effort", choices=["fast", "balanced", "max"], help="the default is fast")
    pack.add_argument("--overwrite", action="store_true", help="replace a checkpoint of mithril that is there")
    unpack = conversion("unpack", "Restores a checkpoint as torch writes it, or as safetensors.", any_source, "what is made")
    unpack.add_argument("--to", choices=["dcp", "safetensors"], default="dcp", help="the default is dcp, a directory")
    unpack.add_argument(
        "--prefix", default="", metavar="TEXT", help="safetensors: only tensors whose names start so, named without it"
    )
    cleaning = command("clean", "Removes containers of killed saves, which no manifest names.")
    cleaning.add_argument("root", metavar="PLACE", help="a checkpoint, or the directory or URL that has some")
    cleaning.add_argument("--dry-run", action="store_true", help="only say what would go")
    cleaning.add_argument(
        "--min-age", type=float, default=3600.0, metavar="SECONDS", help="what is younger stays; the default is 3600"
    )
    return parser


def _pack(parsed: argparse.Namespace) -> dict[str, Any]:
    with _convert.open_source(parsed.source, threads=parsed.threads, trusted=parsed.trusted) as source:
        return _convert.pack(
            source,
            parsed.output,
            base=parsed.base,
            step=parsed.step,
            effort=parsed.effort,
            threads=parsed.threads,
            overwrite=parsed.overwrite,
        )


def _unpack(parsed: argparse.Namespace) -> dict[str, Any]:
    if parsed.prefix and parsed.to != "safetensors":
        raise ValueError("`--prefix` goes with `--to safetensors`")
    with _convert.open_source(parsed.source, threads=parsed.threads, trusted=parsed.trusted) as source:
        if parsed.to == "dcp":
            return _convert.unpack(source, parsed.output)
        return _convert.to_safetensors(source, parsed.output, prefix=parsed.prefix)


def _clean(parsed: argparse.Namespace) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_rest: print(f"warning: {message}", file=sys.stderr)
        cleaned = clean(parsed.root, min_age=parsed.min_age, dry_run=parsed.dry_run)
    return {**cleaned._asdict(), "dry_run": parsed.dry_run}


def _tell_cleaned(report: dict[str, Any]) -> None:
    for path in report["removed"]:
        print(path)
    verb = "would be removed" if report["dry_run"] else "removed"
    young = f", {len(report['too_young'])} too young" if report["too_young"] else ""
    print(f"{len(report['removed'])} files of {report['removed_size']:,} bytes {verb}{young}")


def _tell(report: dict[str, Any]) -> None:
    sizes = f"{report['original_size']:,} bytes of tensors in {report['tensors']} tensors"
    print(f"{report['output']}: {sizes}, {report['written_size']:,} bytes written, {report['seconds']} s")
    left_out = report.get("left_out", [])
    if left_out:
        print(f"left out, as safetensors holds tensors only: {len(left_out)} other values, such as `{left_out[0]}`")
