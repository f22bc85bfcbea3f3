"""How the package behaves as part of a process: threads, signals, forks, imports, memory."""

import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
import tracemalloc

import numpy as np
import pytest

import mithril
import mithril.safetensors


def run(code, *arguments, **options):
    """Runs Python code in a process of its own; returns what it printed."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_imports_no_framework():
    code = """
        import sys, mithril, mithril.safetensors, mithril.model_delta, mithril.chunked
        mithril.decompress(mithril.compress(b"bytes need no framework"))
        print(sorted({"numpy", "torch", "jax", "mlx", "ml_dtypes", "safetensors", "tqdm"} & set(sys.modules)))
    """
    assert run(code) == "[]"


def test_submodules_are_there_without_an_import():
    code = """
        import mithril
        print(mithril.safetensors.Reader.__name__, mithril.chunked.__name__, "safetensors" in dir(mithril))
    """
    assert run(code) == "Reader mithril.chunked True"
    for name in ("compres", "nothing_of_this_name"):
        with pytest.raises(AttributeError, match=f"module 'mithril' has no attribute '{name}'"):
            getattr(mithril, name)


def test_submodules_of_frameworks_are_there_without_an_import():
    code = """
        import sys, mithril
        before = {"torch", "mlx", "deepspeed", "transformers", "orbax"} & set(sys.modules)
        print(mithril.torch.compress_module.__name__, mithril.mlx.load.__name__)
        print(mithril.checkpoint.torch.MithrilStorageWriter.__name__, mithril.checkpoint.orbax.MithrilSave.__name__)
        print(mithril.safetensors.torch.save_file.__module__, mithril.safetensors.numpy.load.__module__, before)
    """
    assert run(code).split("\n") == [
        "compress_module load",
        "MithrilStorageWriter MithrilSave",
        "mithril.safetensors.torch mithril.safetensors.numpy set()",
    ]


def test_submodules_whose_framework_is_missing_are_no_attributes():
    code = """
        import sys
        sys.modules["torch"] = sys.modules["mlx"] = sys.modules["deepspeed"] = None
        import mithril, pydoc
        print(hasattr(mithril, "torch"), hasattr(mithril.checkpoint, "deepspeed"), "torch" in dir(mithril))
        try:
            mithril.torch
        except AttributeError as error:
            print(error)
        pydoc.render_doc(mithril)
    """
    first, second = run(code).split("\n")
    assert first == "False False True"
    assert second.startswith("`mithril.torch` cannot be imported: ")


def test_other_threads_run_meanwhile():
    data = np.random.default_rng(3).standard_normal(4_000_000).astype(np.float32)
    ticks, stop = 0, threading.Event()

    def tick():
        nonlocal ticks
        while not stop.is_set():
            ticks += 1
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    mithril.compress(data, effort="max", threads=1)
    stop.set()
    thread.join()
    assert ticks > 5


def test_threads_share_nothing():
    arrays = [np.random.default_rng(seed).standard_normal(300_000).astype(np.float32) for seed in range(4)]
    results = [None] * 4

    def work(number):
        for _ in range(5):
            results[number] = mithril.decompress_array(mithril.compress(arrays[number]))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for array, result in zip(arrays, results, strict=True):
        assert result.tobytes() == array.tobytes()


def test_the_package_works_after_a_fork():
    data = bytes(range(256)) * 40_000
    blob = mithril.compress(data)
    child = os.fork()
    if child == 0:
        os._exit(0 if mithril.decompress(blob) == data and mithril.compress(data) == blob else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_the_command_is_that_of_the_program(tmp_path):
    version = subprocess.run([sys.executable, "-m", "mithril", "--version"], capture_output=True, text=True, check=True)
    assert version.stdout.strip() == f"mithril {mithril.__version__}"
    script = os.path.join(os.path.dirname(sys.executable), "mithril")
    assert subprocess.run([script, "--version"], capture_output=True, text=True, check=True).stdout == version.stdout
    wrong = subprocess.run([script, "inspect", tmp_path / "absent"], capture_output=True, text=True)
    assert wrong.returncode == 1
    assert "no such file" in wrong.stderr
    assert subprocess.run([script, "nonsense"], capture_output=True).returncode == 2
    path = tmp_path / "w.npy"
    np.save(path, np.arange(1000, dtype=np.float32))
    subprocess.run([script, "compress", path], check=True, capture_output=True)
    os.rename(path, tmp_path / "original")
    subprocess.run([script, "decompress", f"{path}.mckp"], check=True, capture_output=True)
    assert path.read_bytes() == (tmp_path / "original").read_bytes()


def test_loading_runs_no_code_of_the_file(tmp_path):
    code = """
        import sys
        import numpy as np
        import mithril, mithril.safetensors, mithril.safetensors.numpy

        path = sys.argv[1] + "/model"
        array = np.random.default_rng(6).standard_normal((50, 60)).astype(np.float32)
        mithril.safetensors.save_file({"w": array, "b": array[0]}, path, {"note": "text"})
        blob, delta = mithril.compress(array), mithril.compress_delta(array, array + 1)
        mithril.decompress_array(blob)
        mithril.safetensors.load_file(path)

        events = []
        armed = True
        def hook(event, arguments):
            words = ("pickle", "exec", "compile", "subprocess", "os.system", "import", "marshal", "ctypes", "socket")
            if armed and event.startswith(words):
                events.append((event, str(arguments)[:100]))

        sys.addaudithook(hook)
        mithril.decompress_array(blob)
        mithril.decompress_delta(delta, array + 1)
        mithril.safetensors.load_file(path)
        with mithril.safetensors.safe_open(path, "np") as file:
            file.metadata(), file.keys(), file.get_slice("w")[3:5], file.get_tensor("b")
        with mithril.safetensors.Reader.open(path) as reader:
            reader.header(), reader.read_numpy("w")
        armed = False
        print(events)
    """
    assert run(code, tmp_path) == "[]"


def test_loading_models_and_dictionaries_runs_no_code_of_the_file(tmp_path):
    code = """
        import sys
        import torch
        import mithril
        from mithril import df11, dictionary

        folder = sys.argv[1]
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(64, 64)).to(torch.bfloat16)
        df11.compress_model(module, save_path=folder + "/df11")
        records = [b'{"name": "record %d", "kind": "sample"}' % n for n in range(400)]
        trained = dictionary.train(records, size=2000)
        trained.save(folder + "/dictionary")
        frame = trained.compress(records[7])
        base = bytes(range(256)) * 40
        delta = mithril.compress_delta(base[:-1] + b"x", base)
        mithril.safetensors.save_file({"w": module[0].weight.detach().float()}, folder + "/file")
        blob = open(folder + "/file", "rb").read()

        def load():
            df11.load_state_dict(folder + "/df11")
            df11.decompress_model(folder + "/df11", folder + "/plain", replace=True)
            loaded = dictionary.Dictionary.load(folder + "/dictionary")
            assert loaded.decompress(frame) == records[7]
            mithril.decompress_delta(delta, base)
            mithril.chunked.decompress(mithril.chunked.compress(base))
            mithril.safetensors.decompress_bytes(blob)
            mithril.safetensors.torch.load_file(folder + "/file")
            mithril.model_delta.is_model_delta(blob)

        import mithril.safetensors.torch, mithril.model_delta
        load()
        events, armed = [], True
        words = ("pickle", "exec", "compile", "subprocess", "os.system", "import", "marshal", "ctypes", "socket")
        sys.addaudithook(lambda event, _: events.append(event) if armed and event.startswith(words) else None)
        load()
        armed = False
        print(events)
    """
    assert run(code, tmp_path) == "[]"


def test_nothing_is_copied():
    code = """
        import numpy as np
        import mithril

        def peak(reset=False):
            if reset:
                open("/proc/self/clear_refs", "w").write("5")
            status = dict(line.split(":", 1) for line in open("/proc/self/status"))
            return int(status["VmHWM"].split()[0]) * 1024

        array = np.random.default_rng(7).standard_normal(24 << 20, dtype=np.float32) * np.float32(0.1)
        blob = mithril.compress(array)
        out = np.ones_like(array)
        before = peak(reset=True)
        mithril.decompress(blob, out=out)
        into = peak() - before
        before = peak(reset=True)
        mithril.compress(array)
        print(into, peak() - before, len(blob))
    """
    into, packing, packed = map(int, run(code).split())
    assert into < 8 << 20
    # The frame and scratch, and no copy of either side.
    assert packing < packed + (24 << 20)


def test_small_results_leave_nothing_behind(tmp_path):
    array = np.random.default_rng(8).standard_normal((30, 40)).astype(np.float32)
    path = tmp_path / "model"
    mithril.safetensors.save_file({"w": array}, path)
    blob = mithril.compress(array)

    def work():
        mithril.decompress(mithril.compress(array))
        mithril.decompress_array(blob)
        mithril.decompress_delta(mithril.compress_delta(array, array), array)
        mithril.inspect(blob)
        with mithril.safetensors.safe_open(path, "np") as file:
            file.get_tensors(), file.get_slice("w")[1:2], file.metadata()
        for bad in (b"", b"x" * 100, blob[:-1]):
            with pytest.raises(mithril.MithrilError):
                mithril.decompress(bad)
        with pytest.raises(TypeError):
            mithril.compress(object())

    for _ in range(20):
        work()
    gc.collect()
    references = sys.getrefcount(array), sys.getrefcount(blob), len(os.listdir("/proc/self/fd"))
    tracemalloc.start()
    for _ in range(3):
        work()
    gc.collect()
    start = tracemalloc.get_traced_memory()[0]
    for _ in range(200):
        work()
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - start
    tracemalloc.stop()
    assert grown < 20_000
    assert (sys.getrefcount(array), sys.getrefcount(blob), len(os.listdir("/proc/self/fd"))) == references


def test_too_little_memory_is_an_exception():
    code = """
        import resource
        import mithril

        blob = mithril.compress(bytes(range(256)) * (1 << 20), threads=1)
        resource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28))
        try:
            mithril.decompress(blob, threads=1)
        except MemoryError:
            print("MemoryError")
        print(mithril.decompress(mithril.compress(b"alive")).decode())
    """
    assert run(code).split() == ["MemoryError", "alive"]


def test_exported_buffers_are_given_back():
    data = bytearray(b"weights" * 1000)
    blob = bytearray(mithril.compress(data))
    assert mithril.decompress(blob) == data
    # Raises BufferError while anything holds on to them.
    data.append(0)
    blob.append(0)
