"""Saves in the background, so that none is lost without a word: what is not done is waited for when the process ends, and a
failure that nothing can ask about any more is reported.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import sys
import time
import warnings
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from mithril import _mithril

EXIT_TIMEOUT = 600.0
"""Seconds that the end of the process waits for saves, unless a compressor says otherwise."""

# A manifest that is being written at the deadline gets so many seconds more.
_COMMIT_GRACE = 0.3


class _Save(NamedTuple):
    handle: _mithril.SaveHandle
    exit_timeout: float
    # What the caller holds: once it is gone, nothing can ask for the result.
    held: weakref.ref[Any]
    # Of the store, and so of the save together with its key.
    store: int


# The process that started the saves: threads of a parent are not in its children.
_process = 0
_numbers = itertools.count()
# Entries are added and removed by single operations, so that threads need no lock, which a fork might copy while it is held.
_saves: dict[int, _Save] = {}
# Whether the end of the process has waited already.
_is_over = False


def started(handle: _mithril.SaveHandle, held: Any, store: int, exit_timeout: float) -> None:
    """Looks after a save from now on; `held` is what the caller asks for its result."""
    global _process, _is_over
    if _process != os.getpid():
        _process, _is_over = os.getpid(), False
        _saves.clear()
        _call_at_the_end()
    _saves[next(_numbers)] = _Save(handle, exit_timeout, weakref.ref(held), store)
    if _is_over:
        # Started by something else that is called at the end: nothing may come after it.
        finish()


def warn_of_failures() -> None:
    """Warns of saves that have failed, and that nothing has asked about nor can; called by the methods of users."""
    if _process != os.getpid():
        return
    for number, save in list(_saves.items()):
        if not save.handle.done() or save.held() is not None:
            continue
        _saves.pop(number, None)
        reason = _failure(save, 0)
        if reason is not None:
            warnings.warn(f"not saved in the background: {_named(save)}: {reason}", RuntimeWarning, stacklevel=3)


def seen(store: int, key: str) -> None:
    """Forgets saves whose result was asked for, or that were given up on purpose."""
    if _process == os.getpid():
        for number, save in list(_saves.items()):
            if save.store == store and save.handle.key == key and save.handle.done():
                _saves.pop(number, None)


def finish() -> None:
    """Waits for what is not done, gives up what takes too long, and says on stderr what was not saved."""
    global _is_over
    if _process != os.getpid():
        # A fork of the process that started them.
        return
    _is_over = True
    saves = list(_saves.values())
    _saves.clear()
    start = time.monotonic()
    why = "it was given up when the process ended, after {:.0f} seconds"
    for save in saves:
        try:
            _failure(save, max(0.0, start + save.exit_timeout - time.monotonic()))
        except KeyboardInterrupt:
            why = "it was given up when the process ended and the wait for it was interrupted"
            break
    # The later ones first, so that none starts because one before it was given up.
    given_up = [number for number, save in reversed(list(enumerate(saves))) if not save.handle.done() and save.handle.abandon()]
    for number, save in enumerate(saves):
        with contextlib.suppress(KeyboardInterrupt):
            # What was being committed gets some time more.
            reason = why.format(save.exit_timeout) if number in given_up else _failure(save, _COMMIT_GRACE)
            if reason is not None:
                _tell(f"mithril: not saved in the background: {_named(save)}: {reason}")


def _failure(save: _Save, timeout: float) -> str | None:
    """Waits for a save; why it failed, if it has by then."""
    try:
        save.handle.result(timeout)
    except TimeoutError:
        return None
    except Exception as error:
        return str(error)
    return None


def _call_at_the_end() -> None:
    atexit.register(finish)
    # Children of `multiprocessing` that are forks end without what `atexit` has.
    of_children = sys.modules.get("multiprocessing.process")
    if of_children is not None and of_children.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, finish, exitpriority=0)


def _named(save: _Save) -> str:
    return f"checkpoint `{save.handle.key}`"


def _tell(text: str) -> None:
    # There may be no stderr, or a closed one.
    with contextlib.suppress(AttributeError, OSError, ValueError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
