"""Small JSON files that say what they are, with a digest of their bytes."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from mithril._mithril import CorruptError, UnsupportedError

# What stands before the body, which is the last field.
_BODY = b'"body":'


def sealed(body: dict[str, Any], magic: str, version: int) -> bytes:
    """JSON that says what it is, with a digest of the bytes of its body."""
    text = json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
    head = json.dumps({"format": magic, "version": version, "blake2b": _digest(text)}, separators=(",", ":")).encode()
    return head[:-1] + b"," + _BODY + text + b"}"


def unsealed(content: bytes, path: str, magic: str, version: int, *, before: str | None = None) -> dict[str, Any]:
    """What `sealed` was given, if it is all there.

    `before` is the format of files from before the first release, whose digest is over their body written anew.
    """
    try:
        outer = json.loads(content)
        found, found_version, body = outer["format"], outer["version"], outer["body"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CorruptError(f"`{path}` is damaged: {error}") from None
    if found not in (magic, before):
        raise CorruptError(f"`{path}` is the manifest of something else")
    if found_version != version:
        raise UnsupportedError(f"`{path}` is of version {found_version}; this mithril reads version {version}")
    if "blake2b" in outer:
        text = content.partition(_BODY)[2].rstrip()[:-1]
        is_intact = outer["blake2b"] == _digest(text)
        # Of two bodies the one that the digest is over.
        body = json.loads(text) if is_intact else None
    else:
        is_intact = found == before and outer.get("digest") == _digest_before(body)
    if not is_intact or not isinstance(body, dict):
        raise CorruptError(f"`{path}` is damaged: its digest does not match")
    return body


def _digest(text: bytes) -> str:
    return hashlib.blake2b(text, digest_size=32).hexdigest()


def _digest_before(body: Any) -> str:
    return _digest(json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=True).encode())
