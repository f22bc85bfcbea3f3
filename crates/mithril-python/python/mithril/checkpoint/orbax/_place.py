"""Where Orbax says that a checkpoint is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mithril._mithril import UnsupportedError, without_secrets_of_urls


def local_path(directory: Any) -> Path:
    """The directory of a path of `etils`, which may also be one of an object store.

    Those are refused. Orbax itself saves to none but `gs://`.
    """
    text = os.fspath(directory)
    if "://" in text:
        raise UnsupportedError(
            f"checkpoints of Orbax are directories, and `{without_secrets_of_urls(text)}` is none: save to one and copy it, or "
            'save the tree by mithril.checkpoint.Compressor("s3://..."), which needs no Orbax'
        )
    return Path(text)
