"""Threads and memory that the system refuses: work goes on with less, or ends in an exception that programs catch."""

import os
import subprocess
import sys
import tempfile

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits are those of Linux")

# Limits on threads do not hold for the superuser.
NO_THREADS = """
import os, resource
if os.getuid() == 0:
    os.setgid(65534), os.setuid(65534)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
"""

LESS_MEMORY = """
import resource
taken = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (taken + {more}, taken + {more}))
"""

WEIGHTS = """
import numpy as np
weights = np.random.default_rng(0).normal(size=30 << 20 if {large} else 1 << 21).astype("f4")
"""

OUTCOME = """
try:
    {work}
    print("done")
except (MemoryError, RuntimeError) as error:
    print(type(error).__name__, error)
"""


def run(*parts):
    """What a script prints, in a process of its own."""
    done = subprocess.run([sys.executable, "-c", "\n".join(parts)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_frames_are_made_without_other_threads():
    work = "assert mithril.decompress(mithril.compress(weights, threads=8), threads=8) == weights.tobytes()"
    setup = "import mithril" + WEIGHTS.format(large=False)
    assert run(setup, NO_THREADS, OUTCOME.format(work=work)) == "done"


@pytest.fixture
def open_to_all():
    """A directory that other users reach too, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o777)
        yield place


def test_saves_without_a_thread_are_refused_by_an_exception(open_to_all):
    setup = f"import mithril.checkpoint\ncompressor = mithril.checkpoint.Compressor({open_to_all!r}, threads=8)"
    for work in (
        "compressor.save({'weights': weights}, 'step_1')",
        "compressor.save_async({'weights': weights}, 'step_1').result()",
    ):
        printed = run(setup, WEIGHTS.format(large=False), NO_THREADS, OUTCOME.format(work=work))
        assert printed.startswith("RuntimeError") and "cannot start a thread" in printed


@pytest.mark.parametrize(
    ("work", "outcomes"),
    [
        ("mithril.decompress(frame)", "MemoryError"),
        ("mithril.compress(weights, threads=2)", "MemoryError"),
        # It takes little memory for each thread, but the system may refuse that too.
        ("compressor.save({'weights': weights}, 'step_1')", ("done", "MemoryError", "RuntimeError cannot start a thread")),
    ],
)
def test_memory_that_is_refused_is_an_exception(work, outcomes, tmp_path):
    setup = f"import mithril, mithril.checkpoint\ncompressor = mithril.checkpoint.Compressor({str(tmp_path)!r}, threads=1)"
    # As a process has it that works for a while: threads and buffers of the interpreter are there.
    warm = "frame = mithril.compress(weights)\ncompressor.save({'weights': weights[:5000]}, 'warm')"
    limit = LESS_MEMORY.format(more=40 << 20)
    printed = run(setup, WEIGHTS.format(large=True), warm, limit, OUTCOME.format(work=work))
    assert printed.startswith(outcomes), printed
