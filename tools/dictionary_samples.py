"""Collects sets of real small records, to train dictionaries on and to measure them with.

    python3 tools/dictionary_samples.py OUT [--sets debian-control,man-sections] [--limit 30000] [--corpus DIR]

For every set, OUT/SET/train and OUT/SET/test hold one file per record; one record in five is held out, by a hash of
its content. Records that occur twice are kept once. Most sets come from files that a Debian machine has; `npm-*` and
`python-metadata` ask the package registries that npm and pip are set up for about the packages that Debian has too,
`safetensors-entries` needs a directory of safetensors files (`--corpus`). A set whose source is missing is skipped, and
said so.
"""

import argparse
import concurrent.futures
import glob
import gzip
import hashlib
import io
import json
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
import zipfile
import zlib

# A record is a small thing: what is longer gains little from a dictionary.
LENGTHS = "40:16384"


def debian_index():
    """The list of packages of the main archive, as apt keeps it."""
    paths = glob.glob("/var/lib/apt/lists/*_main_binary-*_Packages*")
    paths.sort(key=lambda path: -pathlib.Path(path).stat().st_size)
    if not paths:
        return b""
    return subprocess.run(["/usr/lib/apt/apt-helper", "cat-file", paths[0]], capture_output=True, check=True).stdout


def debian_control():
    """One stanza of the package index per record."""
    return (stanza + b"\n" for stanza in debian_index().split(b"\n\n") if stanza)


def debian_protobuf():
    """The same stanzas as protocol buffer messages: a number and a length before every field, no field names."""
    numbers = {}
    for stanza in debian_index().split(b"\n\n"):
        message = bytearray()
        for field in re.split(rb"\n(?=\S)", stanza):
            name, _, value = field.partition(b": ")
            number = numbers.setdefault(name, len(numbers) + 1)
            if value.isdigit() and len(value) < 18:
                message += varint(number << 3) + varint(int(value))
            else:
                # Lists are repeated fields, as a schema would have them.
                parts = value.split(b", ") if name in (b"Depends", b"Recommends", b"Suggests", b"Tag") else [value]
                for part in parts:
                    message += varint(number << 3 | 2) + varint(len(part)) + part
        yield bytes(message)


def varint(value):
    """A number in groups of seven bits, lowest first."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def changelog_entries():
    """One entry of a package's changelog per record."""
    for path in sorted(glob.glob("/usr/share/doc/*/changelog.Debian*.gz")):
        text = gzip.decompress(pathlib.Path(path).read_bytes())
        for entry in re.split(rb"\n(?=\S+ \([^)\n]+\) [^\n]*; urgency)", text):
            yield entry.strip() + b"\n"


def log_lines():
    """One line of the machine's logs per record: mostly those of the package manager."""
    for path in sorted(pathlib.Path("/var/log").rglob("*.log")):
        yield from (line + b"\n" for line in path.read_bytes().split(b"\n"))


def log_pages():
    """Twelve lines of the same logs per record, about 1 KB."""
    lines = list(log_lines())
    for start in range(0, len(lines), 12):
        yield b"".join(lines[start : start + 12])


def man_sections():
    """One section of a manual page per record."""
    for path in sorted(glob.glob("/usr/share/man/man*/*.gz")):
        try:
            text = gzip.decompress(pathlib.Path(path).read_bytes())
        except OSError:
            continue
        yield from re.split(rb"\n(?=\.SH |\.Sh )", text)


def html_pages():
    """One small page of the toolchain's documentation per record."""
    root = subprocess.run(["rustc", "--print", "sysroot"], check=True, capture_output=True, text=True).stdout.strip()
    for path in sorted(glob.glob(f"{root}/share/doc/rust/html/std/**/*.html", recursive=True)):
        yield pathlib.Path(path).read_bytes()


def html_sections():
    """One element of a page of the toolchain's documentation per record: an item with its heading, or a paragraph's section."""
    root = subprocess.run(["rustc", "--print", "sysroot"], check=True, capture_output=True, text=True).stdout.strip()
    for path in sorted(glob.glob(f"{root}/share/doc/rust/html/alloc/**/*.html", recursive=True)):
        yield from re.split(rb"(?=<section |<details |<h[1-4] )", pathlib.Path(path).read_bytes())


def crate_versions():
    """One line of the crate index per record: the versions of crates that cargo has looked at, as JSON."""
    for path in sorted(pathlib.Path.home().glob(".cargo/registry/index/*/.cache/**/*")):
        if path.is_file():
            for piece in path.read_bytes().split(b"\0"):
                if piece.startswith(b"{"):
                    yield piece


def fetch(url, accept="application/json", more=None):
    """The body at a URL, or nothing."""
    try:
        request = urllib.request.Request(url, headers={"Accept": accept, **(more or {})})
        return urllib.request.urlopen(request, timeout=30).read()
    except (OSError, ValueError):
        return None


def npm_registry():
    """The registry that npm is set up for."""
    return subprocess.run(["npm", "config", "get", "registry"], capture_output=True, text=True, check=True).stdout.strip().rstrip("/")


# Programs with many dependencies, whose names give a list of packages.
NPM_ROOTS = ["webpack-cli", "jest", "eslint", "next", "gatsby", "@angular/cli", "express", "vite", "nx", "karma", "storybook",
             "react-scripts", "gulp", "grunt", "mocha", "ember-cli", "lerna", "netlify-cli", "firebase-tools", "serverless",
             "aws-cdk", "ionic", "cordova", "hexo", "parcel", "rollup", "svelte", "nuxt", "expo", "vue-cli", "pm2", "artillery"]


def npm_lock_entries(roots):
    """One entry of a lock file per record."""

    def of_root(root):
        with tempfile.TemporaryDirectory() as directory:
            try:
                subprocess.run(["npm", "install", "--package-lock-only", "--ignore-scripts", "--legacy-peer-deps", root],
                               cwd=directory, check=False, capture_output=True, timeout=600)
            except subprocess.TimeoutExpired:
                print(f"npm: {root} took too long and is left out", file=sys.stderr)
                return []
            lock = pathlib.Path(directory, "package-lock.json")
            packages = json.loads(lock.read_text())["packages"] if lock.exists() else {}
            return [(json.dumps(name) + ": " + json.dumps(entry, indent=2)).encode() for name, entry in packages.items()]

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for entries in pool.map(of_root, roots):
            yield from entries


def npm_manifests(lock_entries):
    """The newest manifest of each package that the lock entries name, or that Debian has."""
    registry = npm_registry()
    names = {entry.split(b'": ')[0].rsplit(b"node_modules/")[-1].strip(b'"').decode() for entry in lock_entries}
    names |= {name.decode() for name in re.findall(rb"^Package: node-(\S+)", debian_index(), re.MULTILINE)}
    urls = [f"{registry}/{urllib.parse.quote(name, safe='@')}/latest" for name in sorted(names) if name]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        yield from (body for body in pool.map(fetch, urls) if body)


def metadata_of_wheel(url):
    """METADATA of a wheel, which lies near its end; only that part is asked for."""
    end = fetch(url, "*/*", {"Range": "bytes=-65536"})
    try:
        archive = zipfile.ZipFile(io.BytesIO(end or b""))
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return archive.read(name)
    except (zipfile.BadZipFile, StopIteration, ValueError, EOFError, zlib.error):
        return None


def python_metadata():
    """The header of one package's METADATA per record. Names are those of the Python packages in Debian."""
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    config = subprocess.run(command, check=False, capture_output=True, text=True)
    from pip._internal.models.index import PyPI

    index = (config.stdout.strip() or PyPI.simple_url).rstrip("/")
    names = sorted({name.decode() for name in re.findall(rb"^Package: python3-(\S+)", debian_index(), re.MULTILINE)})

    def header(name):
        page = fetch(f"{index}/{name}/", "application/vnd.pypi.simple.v1+json, text/html;q=0.5")
        if not page:
            return None
        if page.startswith(b"{"):
            urls = [file["url"] for file in json.loads(page)["files"] if file["filename"].endswith(".whl")]
        else:
            urls = [url.decode() for url in re.findall(rb'href="([^"#]+\.whl)', page)]
        if not urls:
            return None
        body = metadata_of_wheel(urllib.parse.urljoin(f"{index}/{name}/", urls[-1]))
        return body and body.split(b"\n\n")[0].split(b"\nDescription:")[0] + b"\n"

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        yield from (body for body in pool.map(header, names) if body)


def safetensors_entries(corpus):
    """One tensor's entry of a safetensors header per record."""
    for path in sorted(pathlib.Path(corpus).glob("*.safetensors")):
        with path.open("rb") as file:
            header = file.read(struct.unpack("<Q", file.read(8))[0])
        for name, entry in json.loads(header).items():
            yield (json.dumps(name) + ":" + json.dumps(entry, separators=(",", ":"))).encode()


def write(out, name, records, limit, lengths):
    """Spreads over train and test; says what came."""
    shortest, longest = map(int, lengths.split(":"))
    seen = {}
    for record in records:
        if shortest <= len(record) <= longest:
            seen.setdefault(hashlib.sha256(record).digest(), record)
    # By the start of their hash, so that the records kept are spread over the whole source; held out by its end.
    chosen = set(sorted(seen)[:limit])
    kept = [digest for digest in seen if digest in chosen]
    if not kept:
        print(f"{name}: no source on this machine, skipped")
        return
    for part in ("train", "test"):
        (out / name / part).mkdir(parents=True, exist_ok=True)
    for index, digest in enumerate(kept):
        part = "test" if digest[-1] < 51 else "train"
        (out / name / part / f"{index:06}").write_bytes(seen[digest])
    total = sum(len(seen[digest]) for digest in kept)
    print(f"{name}: {len(kept)} records, {total} bytes, {total // len(kept)} each", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--sets", help="names, separated by commas; all by default")
    parser.add_argument("--limit", type=int, default=30000, help="records per set at most")
    parser.add_argument("--lengths", default=LENGTHS, help="bytes of the shortest and the longest record")
    parser.add_argument("--corpus", help="directory of safetensors files")
    parser.add_argument("--npm-roots", default=",".join(NPM_ROOTS), help="programs whose lock files are asked for; with npm-lock, their packages are in npm-manifests too")
    arguments = parser.parse_args()
    lock_entries = []

    def npm_lock():
        lock_entries.extend(npm_lock_entries(filter(None, arguments.npm_roots.split(","))))
        return lock_entries

    sources = {
        "debian-control": debian_control,
        "debian-protobuf": debian_protobuf,
        "changelog-entries": changelog_entries,
        "log-lines": log_lines,
        "log-pages": log_pages,
        "man-sections": man_sections,
        "html-pages": html_pages,
        "html-sections": html_sections,
        "crate-versions": crate_versions,
        "npm-lock": npm_lock,
        "npm-manifests": lambda: npm_manifests(lock_entries),
        "python-metadata": python_metadata,
        "safetensors-entries": lambda: safetensors_entries(arguments.corpus) if arguments.corpus else [],
    }
    for name in arguments.sets.split(",") if arguments.sets else sources:
        write(arguments.out, name, sources[name](), arguments.limit, arguments.lengths)


if __name__ == "__main__":
    main()
