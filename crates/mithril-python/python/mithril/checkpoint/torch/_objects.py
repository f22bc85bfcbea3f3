"""What is not a tensor: plain values as JSON, anything else as torch serialises it."""

from __future__ import annotations

import io
from typing import Any

import torch

from mithril._mithril import UnsupportedError
from mithril.checkpoint import _state


def text_of(value: Any) -> str | None:
    """A plain value as JSON that gives back exactly the same value, or None if it is not plain."""
    try:
        encoded = _state.encode(value)
    except (TypeError, ValueError):
        return None
    return None if encoded.tensors else encoded.text


def value_of(text: str) -> Any:
    """The value that `text_of` made this of."""
    return _state.decode(text, [], lambda _buffers: None)


def serialised(value: Any) -> io.BytesIO:
    """What torch's planners read values from."""
    stream = io.BytesIO()
    torch.save(value, stream)
    stream.seek(0)
    return stream


def of_text(text: str) -> io.BytesIO:
    """A plain value, for torch's planners."""
    return serialised(value_of(text))


def of_bytes(name: str, content: bytes, trusted: bool) -> io.BytesIO:
    """What torch serialised, for torch's planners.

    They unpickle without restrictions. So unless the file is trusted, only what the restricted unpickler makes of it is
    handed on, serialised anew.
    """
    if trusted:
        return io.BytesIO(content)
    try:
        value = torch.load(io.BytesIO(content), weights_only=True)
    except Exception as error:
        raise UnsupportedError(
            f"`{name}` holds objects that only unpickling can make, which may run any code: load it with "
            f"`trusted=True` if you trust who wrote it ({error})"
        ) from None
    return serialised(value)
