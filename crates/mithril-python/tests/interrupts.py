"""Processes that are busy with large data and are sent SIGINT, as Ctrl-C does; how long until they are gone.

Both the tests and `tools/bench_python.py` use this.
"""

import signal
import subprocess
import sys
import time

import numpy as np

# What a process has ready, and what it is interrupted in. Calls that are quick even with large data are made many times.
CASES = {
    "compress": ("", "mithril.compress(weights, effort='max', threads=1)"),
    "compress_delta": (
        "later = weights + np.float32(1e-4)",
        "mithril.compress_delta(later, weights, effort='max', threads=1)",
    ),
    "decompress": ("blob = mithril.compress(weights)", "for _ in range(1000): mithril.decompress(blob, threads=1)"),
    "decompress into out": (
        "blob, out = mithril.compress(weights), np.zeros_like(weights)",
        "for _ in range(1000): mithril.decompress(blob, out=out, threads=1)",
    ),
    "safetensors.save_file": (
        "other = weights[::-1].copy()",
        "for _ in range(1000): st.save_file({'a': weights, 'b': other}, folder + '/saved', effort='max', threads=1)",
    ),
    "safetensors.compress_file": (
        "options = {'effort': 'max', 'threads': 1, 'overwrite': True}",
        "for _ in range(1000): st.compress_file(folder + '/plain.safetensors', folder + '/packed', **options)",
    ),
    "safetensors.load_file": (
        "st.save_file({'a': weights}, folder + '/loaded')",
        "for _ in range(1000): st.load_file(folder + '/loaded', threads=1)",
    ),
    "checkpoint.save": (
        "store = mithril.checkpoint.Compressor(fresh_store(), effort='max', threads=1)",
        "for number in range(1000): store.save({'a': weights}, f'k{number}')",
    ),
    "checkpoint.load": (
        "store = mithril.checkpoint.Compressor(fresh_store(), threads=1); store.save({'a': weights}, 'k')",
        "for _ in range(1000): store.load('k')",
    ),
    "checkpoint.verify": (
        "store = mithril.checkpoint.Compressor(fresh_store(), threads=1); store.save({'a': weights}, 'k')",
        "for _ in range(1000): store.verify(deep=True)",
    ),
    "df11.compress_model": (
        "",
        "for _ in range(1000): "
        "mithril.df11.compress_model(folder + '/bf16.safetensors', save_path=folder + '/df11', replace=True, threads=1)",
    ),
    "python -m mithril": (None, ["compress", "plain.safetensors", "-o", "by_command", "--effort", "max", "--threads", "1"]),
}

_PROGRAM = """
import os, sys
import numpy as np
import mithril
import mithril.safetensors as st

folder = sys.argv[1]
weights = np.load(folder + "/weights.npy")


def fresh_store():
    return f"local://{{folder}}/store{{os.getpid()}}"


{setup}
print("ready", flush=True)
try:
    {call}
    print("done")
except KeyboardInterrupt:
    print("interrupted")
"""


def prepare(folder, n_bytes=192 << 20):
    """Write the data that the cases read."""
    # Nothing in it repeats itself: that would be coded in no time.
    weights = np.random.default_rng(0).standard_normal((n_bytes // 4096, 1024), dtype=np.float32) * np.float32(0.02)
    np.save(folder / "weights.npy", weights)
    header = b'{"w.weight":{"dtype":"%s","shape":[%d,%d],"data_offsets":[0,%d]}}'
    for name, dtype, data in (("plain", b"F32", weights), ("bf16", b"BF16", (weights.view(np.uint32) >> 16).astype(np.uint16))):
        text = header % (dtype, *data.shape, data.nbytes)
        (folder / f"{name}.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data.tobytes())


def measure(case, folder, delay=0.3):
    """Seconds from SIGINT until the process is gone, and how it ended: "interrupted", "done", or its exit code."""
    setup, call = CASES[case]
    if setup is None:
        command = [sys.executable, "-m", "mithril", *call]
    else:
        command = [sys.executable, "-c", _PROGRAM.format(setup=setup, call=call), str(folder)]
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        # Whoever runs this in the background of a shell has SIGINT ignored, which processes pass on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    if setup is None:
        # It has no line to say: it is at work once its unfinished file is there.
        while not list(folder.glob(".by_command*")) and process.poll() is None:
            time.sleep(0.001)
    else:
        assert process.stdout.readline() == "ready\n"
        time.sleep(delay)
    sent = time.monotonic()
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[0].strip()
    return time.monotonic() - sent, said or process.returncode
