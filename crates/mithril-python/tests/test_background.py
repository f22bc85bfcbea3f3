"""Saves in the background: none is dropped at the end of a process, and none fails without a word."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
import threading
import warnings

import numpy as np
import pytest

import mithril
import mithril.checkpoint as ckpt

# A state that takes long enough for the end of the script to come first, and what a script starts with.
BEGIN = """
    import os, sys
    import numpy as np
    import mithril.checkpoint as ckpt

    def state(number):
        noise = np.random.default_rng(number).standard_normal(1 << 21).astype(np.float32)
        return {"w": noise, "number": number}

    compressor = ckpt.Compressor(sys.argv[1])
"""


def run(code, *arguments, begin=BEGIN):
    """Runs a script in a process of its own."""
    script = textwrap.dedent(begin) + textwrap.dedent(code)
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def saved(store):
    """Keys of a store, all of which can be loaded."""
    compressor = ckpt.Compressor(store)
    keys = compressor.keys()
    for key in keys:
        assert compressor.load(key)["w"].size
    return keys


ALL = [f"step_{number}" for number in range(4)]
SAVE_ALL = "for number in range(4): compressor.save_async(state(number), f'step_{number}')\n"


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("raise ValueError('the training failed')", 1),
        ("del compressor", 0),
        # As `main` of many scripts does it: the last handle goes with the function.
        ("def main(): return ckpt.Compressor(sys.argv[1]).save_async(state(4), 'last').key\nmain()", 0),
    ],
    ids=["end", "exit", "exception", "forgotten", "in-a-function"],
)
def test_the_end_of_a_script_waits_for_its_saves(tmp_path, end, code):
    done = run(SAVE_ALL + end, tmp_path)
    assert done.returncode == code, done.stderr
    assert [key for key in saved(tmp_path) if key != "last"] == ALL
    assert "mithril:" not in done.stderr
    assert ("last" in saved(tmp_path)) == ("main" in end)


def test_what_takes_too_long_is_given_up_and_named(tmp_path):
    done = run(
        """
        slow = ckpt.Compressor(sys.argv[1], exit_timeout=0, effort="max", threads=1)
        for number in range(3):
            slow.save_async(state(number), f"step_{number}")
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    kept = saved(tmp_path)
    given_up = [line for line in done.stderr.splitlines() if "given up" in line]
    # A manifest that was being written may have appeared; what did not is named, each once.
    assert sorted(kept + [line.split("`")[1] for line in given_up]) == [f"step_{number}" for number in range(3)]
    assert given_up and all(line.startswith("mithril: ") for line in given_up)


def test_failures_that_nothing_asked_about_are_said_at_the_end(tmp_path):
    done = run(
        """
        compressor.save(state(0), "step_0")
        compressor.save_async(state(1), "step_0")
        asked = compressor.save_async(state(2), "step_0")
        try:
            asked.result()
        except Exception as error:
            print(type(error).__name__)
        compressor.save_async(state(3), "step_3", "never_saved")
        """,
        tmp_path,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "ConflictError")
    # The first by the next save, which came after it had failed; the last when the process ended.
    said = [line for line in done.stderr.splitlines() if "not saved in the background" in line]
    assert len(said) == 2, done.stderr
    assert "RuntimeWarning" in said[0] and "`step_0`" in said[0] and "exists" in said[0]
    assert said[1].startswith("mithril: ") and "`step_3`" in said[1] and "never_saved" in said[1]


def test_a_failure_that_nothing_can_ask_about_is_a_warning_of_the_next_save(tmp_path):
    compressor = ckpt.Compressor(tmp_path)
    state = {"w": np.arange(1000, dtype=np.float32)}
    compressor.save(state, "step_1")
    forgotten = compressor.save_async(state, "step_1")
    kept = compressor.save_async(state, "step_1")
    compressor.flush()
    assert forgotten.done()
    del forgotten
    with pytest.warns(RuntimeWarning, match=r"`step_1`: .*exists"):
        compressor.save(state, "step_2")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Said once; and the one whose handle is there can still be asked.
        compressor.save(state, "step_3")
    with pytest.raises(mithril.ConflictError):
        kept.result()
    del kept
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compressor.save_async(state, "step_4").result()


def test_saves_of_other_exit_functions_are_not_lost(tmp_path):
    done = run(
        """
        atexit.register(lambda: compressor.save_async(state(9), "step_9"))
        compressor.save_async(state(1), "step_1")
        """,
        tmp_path,
        begin="import atexit\n" + textwrap.dedent(BEGIN),
    )
    assert done.returncode == 0, done.stderr
    assert saved(tmp_path) == ["step_1", "step_9"]


@pytest.mark.parametrize("end", ["sys.exit(0)", "os._exit(0)", ""], ids=["exit", "at-once", "end"])
def test_a_fork_waits_for_no_save_of_its_parent(tmp_path, end):
    done = run(
        SAVE_ALL
        + f"""
child = os.fork()
if child == 0:
    {end or "pass"}
else:
    assert os.waitpid(child, 0)[1] == 0
""",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert saved(tmp_path) == ALL
    assert "mithril:" not in done.stderr


def test_a_fork_waits_for_its_own_saves(tmp_path):
    done = run(
        """
        compressor.save_async(state(0), "step_0")
        child = os.fork()
        compressor.save_async(state(1 + (child == 0)), "child" if child == 0 else "parent")
        if child:
            assert os.waitpid(child, 0)[1] == 0
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert saved(tmp_path) == ["child", "parent", "step_0"]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_of_multiprocessing_wait_for_their_saves(tmp_path, method):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(BEGIN)
        + textwrap.dedent(
            f"""
            import multiprocessing

            def work(number):
                compressor.save_async(state(number), f"step_{{number}}")

            if __name__ == "__main__":
                context = multiprocessing.get_context("{method}")
                processes = [context.Process(target=work, args=(number,)) for number in range(2)]
                for process in processes:
                    process.start()
                for process in processes:
                    process.join()
                    assert process.exitcode == 0
            """
        )
    )
    store = tmp_path / "store"
    done = subprocess.run([sys.executable, script, store], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert saved(store) == ["step_0", "step_1"]


def test_a_handle_of_the_parent_is_refused_in_a_fork(tmp_path):
    compressor = ckpt.Compressor(tmp_path)
    handle = compressor.save_async({"w": np.arange(10)}, "step_1")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            handle.result()
        except RuntimeError as error:
            code = 0 if "fork" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    handle.result()


def test_threads_save_in_the_background_at_the_same_time(tmp_path):
    compressor = ckpt.Compressor(tmp_path)

    def work(number):
        for step in range(10):
            compressor.save_async({"w": np.full(10, step)}, f"thread{number}_{step}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    compressor.flush()
    assert len(compressor.keys()) == 40


def test_ctrl_c_at_the_end_gives_up_and_says_so(tmp_path):
    done = run(
        """
        import signal, threading, time
        from mithril.checkpoint import _background

        def interrupt():
            while not _background._is_over:
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGINT)

        # A shell that runs the tests in the background has it ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Thread(target=interrupt, daemon=True).start()
        slow = ckpt.Compressor(sys.argv[1], effort="max", threads=1)
        # All of them before the first save: making them takes as long, and the saves must outlast the script.
        states = [state(number) for number in range(6)]
        for number, made in enumerate(states):
            slow.save_async(made, f"step_{number}")
        """,
        tmp_path,
    )
    named = [line.split("`")[1] for line in done.stderr.splitlines() if "interrupted" in line]
    assert named
    assert sorted(saved(tmp_path) + named) == [f"step_{number}" for number in range(6)]


def test_the_time_limit_is_checked_and_copied():
    compressor = ckpt.Compressor("memory://", exit_timeout=7.5)
    assert pickle.loads(pickle.dumps(compressor)).exit_timeout == 7.5
    for wrong in (-1, float("nan")):
        with pytest.raises(ValueError, match="exit_timeout"):
            ckpt.Compressor("memory://", exit_timeout=wrong)
