"""Dictionaries beside the package `zstandard`: each reads what the other made."""

import array
import pickle
import struct
import subprocess
import sys
import threading
import time
import tracemalloc

import numpy as np
import pytest
import zstandard

import mithril
from mithril.dictionary import Dictionary, dictionary_id, train, update


def record(i: int) -> bytes:
    text = '{"id": %d, "user": "user-%d", "action": "%s", "path": "/api/v2/items/%d", "status": %d, "agent": "curl/8.%d"}'
    return (text % (i, i * 7919 % 997, ["get", "put", "delete"][i % 3], i * 31 % 5003, [200, 404, 500][i % 3], i % 9)).encode()


RECORDS = [record(i) for i in range(3000)]
TRAINED = train(RECORDS[:2400], size=8192, search=False)
HELD_OUT = RECORDS[2400:]


def test_training_serves_records_that_it_did_not_see():
    evaluation = TRAINED.evaluate(HELD_OUT)
    assert evaluation.raw == sum(map(len, HELD_OUT))
    assert evaluation.ratio > 2.5 * evaluation.plain_ratio
    assert len(TRAINED) <= 8192
    assert TRAINED.training.held_out is None


def test_a_search_says_what_it_found():
    dictionary = train(RECORDS, size=4096, threads=2)
    assert dictionary.training.held_out.ratio > 2
    assert dictionary.training.k >= dictionary.training.d
    assert dictionary == train(RECORDS, size=4096, threads=1)


def test_samples_may_lie_in_one_buffer():
    joined = b"".join(RECORDS[:2400])
    ends = np.cumsum([0] + [len(sample) for sample in RECORDS[:2400]])
    assert train(joined, offsets=ends, size=8192, search=False) == TRAINED


def test_every_argument_reaches_the_trainer():
    dictionary = train(RECORDS, size=2048, k=64, d=6, id=40_000, level=19)
    assert (dictionary.id, dictionary.level, dictionary.training.k, dictionary.training.d) == (40_000, 19, 64, 6)
    assert train(RECORDS, size=2048, raw_content=True, search=False).id is None
    assert len(train(RECORDS, size="auto", search=False)) in range(1024, 262_145)


@pytest.mark.parametrize(
    ("samples", "arguments", "why"),
    [
        ([], {}, "too few"),
        ([b"x"] * 3, {}, "too few"),
        ([b"abc"] * 20, {}, "too small"),
        ([b"the same record every time" * 9] * 100, {}, "too alike"),
        (RECORDS, {"size": 1}, "size"),
        (RECORDS, {"size": "large"}, "auto"),
        (RECORDS, {"level": 99}, "level"),
        (RECORDS, {"d": 3}, "d must be"),
        (RECORDS, {"k": 2}, "k must be"),
        (RECORDS, {"threads": -1}, "threads"),
    ],
)
def test_training_that_cannot_work_says_why(samples, arguments, why):
    with pytest.raises(ValueError, match=why):
        train(samples, **arguments)


def test_noise_is_refused_with_its_reason():
    noise = np.random.default_rng(0).integers(0, 256, (300, 400), np.uint8)
    with pytest.raises(ValueError, match="too little in common"):
        train(list(noise))


def test_one_buffer_is_no_list_of_records():
    for wrong in (b"bytes", bytearray(3), memoryview(b"view"), "text"):
        with pytest.raises(TypeError):
            train(wrong)
        with pytest.raises(TypeError):
            TRAINED.compress_many(wrong)
    with pytest.raises(TypeError):
        TRAINED.compress_many([1, 2, 3])


# Beside `zstandard`.


def test_zstandard_reads_our_frames_and_dictionaries():
    theirs = zstandard.ZstdCompressionDict(TRAINED.data)
    assert theirs.dict_id() == TRAINED.id == TRAINED.to_zstandard().dict_id()
    decompressor = zstandard.ZstdDecompressor(dict_data=theirs)
    for original, frame in zip(HELD_OUT, TRAINED.compress_many(HELD_OUT), strict=True):
        assert decompressor.decompress(frame) == original
        assert zstandard.get_frame_parameters(frame).dict_id == dictionary_id(frame) == TRAINED.id


def test_we_read_frames_and_dictionaries_of_zstandard():
    theirs = zstandard.train_dictionary(8192, RECORDS[:2400])
    ours = Dictionary(theirs)
    assert (ours.id, ours.data) == (theirs.dict_id(), theirs.as_bytes())
    compressor = zstandard.ZstdCompressor(level=7, dict_data=theirs)
    frames = [compressor.compress(original) for original in HELD_OUT]
    assert ours.decompress_many(frames) == HELD_OUT
    assert ours.decompress(frames[0]) == HELD_OUT[0]


@pytest.mark.parametrize("level", [1, 3, 19, 22])
def test_frames_are_those_of_zstd_at_every_level(level):
    ours = Dictionary(TRAINED, level=level)
    theirs = zstandard.ZstdDecompressor(dict_data=ours.to_zstandard())
    assert [theirs.decompress(frame) for frame in ours.compress_many(HELD_OUT)] == HELD_OUT


def test_bare_content_is_a_dictionary_for_both():
    ours = Dictionary(b"".join(RECORDS[:20]))
    theirs = zstandard.ZstdCompressionDict(ours.data, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    frame = ours.compress(HELD_OUT[0])
    assert ours.id is None is dictionary_id(frame)
    assert zstandard.ZstdDecompressor(dict_data=theirs).decompress(frame) == HELD_OUT[0]
    assert ours.decompress(zstandard.ZstdCompressor(dict_data=theirs).compress(HELD_OUT[1])) == HELD_OUT[1]


# One, many, and in one buffer.


def test_every_way_gives_the_same_frames():
    one_by_one = [TRAINED.compress(original) for original in HELD_OUT]
    assert TRAINED.compress_many(HELD_OUT, threads=1) == one_by_one
    assert TRAINED.compress_many(HELD_OUT, threads=3) == one_by_one
    assert TRAINED.compress_many(iter(HELD_OUT)) == one_by_one
    assert TRAINED.compress_many([memoryview(bytearray(original)) for original in HELD_OUT]) == one_by_one
    assert TRAINED.compress_many([np.frombuffer(original, np.uint8) for original in HELD_OUT]) == one_by_one
    offsets = [0, *np.cumsum([len(original) for original in HELD_OUT]).tolist()]
    frames, ends = TRAINED.compress_buffer(b"".join(HELD_OUT), offsets)
    assert frames == b"".join(one_by_one)
    assert np.diff(np.asarray(ends)).tolist() == [len(frame) for frame in one_by_one]
    records, back = TRAINED.decompress_buffer(frames, ends)
    assert (records, back.tolist()) == (b"".join(HELD_OUT), offsets)


@pytest.mark.parametrize("records", [[], [b""], [b"", b"x", b""], [b"x" * 100_000, b""]])
def test_odd_lists_come_back(records):
    frames = TRAINED.compress_many(records)
    assert TRAINED.decompress_many(frames) == records
    offsets = np.cumsum([0] + [len(record) for record in records])
    joined, ends = TRAINED.compress_buffer(b"".join(records), offsets)
    assert TRAINED.decompress_buffer(joined, ends)[0] == b"".join(records)


@pytest.mark.parametrize(
    "make",
    [
        list,
        tuple,
        lambda n: np.array(n, np.int64),
        lambda n: np.array(n, np.uint64),
        lambda n: np.array(n, np.int32),
        lambda n: np.repeat(np.array(n, np.int64), 2)[::2],
        lambda n: array.array("q", n),
        lambda n: memoryview(array.array("I", n)),
    ],
)
def test_offsets_of_every_kind(make):
    expected = TRAINED.compress_buffer(b"abcdefgh", [0, 3, 3, 8])
    frames, ends = TRAINED.compress_buffer(b"abcdefgh", make([0, 3, 3, 8]))
    assert (frames, ends.tolist()) == (expected[0], expected[1].tolist())
    # Records need not fill the buffer.
    frames, ends = TRAINED.compress_buffer(b"abcdefgh", make([2, 5]))
    assert TRAINED.decompress_buffer(frames, ends)[0] == b"cde"


@pytest.mark.parametrize("offsets", [[], [0, 9], [3, 2], [0, -1], np.array([0, -1]), [0, 1 << 70]])
def test_offsets_that_lead_nowhere_are_refused(offsets):
    with pytest.raises(ValueError, match="offsets"):
        TRAINED.compress_buffer(b"abcdefgh", offsets)
    with pytest.raises(ValueError, match="offsets"):
        TRAINED.decompress_buffer(b"abcdefgh", offsets)


@pytest.mark.parametrize("offsets", [np.array([0.0, 8.0]), np.zeros((2, 2), np.int64), b"\0\x08"])
def test_offsets_that_are_no_numbers_are_refused(offsets):
    with pytest.raises(TypeError, match="offsets"):
        TRAINED.compress_buffer(b"abcdefgh", offsets)


# Damage and wrong dictionaries.


def test_another_dictionary_is_refused_and_the_right_one_named():
    other = train(RECORDS, size=4096, search=False)
    frames = TRAINED.compress_many(HELD_OUT)
    with pytest.raises(mithril.BaseMismatchError, match=str(TRAINED.id)):
        other.decompress(frames[0])
    mixed = [*other.compress_many(HELD_OUT[:5]), *frames]
    with pytest.raises(mithril.BaseMismatchError, match=f"record 5: .*{TRAINED.id}"):
        other.decompress_many(mixed)


def test_damage_is_refused():
    frame = TRAINED.compress(HELD_OUT[0])
    for end in range(len(frame)):
        with pytest.raises(mithril.MithrilError):
            TRAINED.decompress(frame[:end])
    with pytest.raises(mithril.CorruptError):
        TRAINED.decompress(b"no frame at all")
    with pytest.raises(mithril.MithrilError, match="record 1"):
        TRAINED.decompress_many([frame, frame[:-1], frame])
    for end in (4, 8, 20, 60):
        with pytest.raises(mithril.MithrilError):
            Dictionary(TRAINED.data[:end])
    with pytest.raises(ValueError, match="level"):
        Dictionary(TRAINED, level=0)


def lying_frame(stated, content=b""):
    """A frame of one raw block that states another length than it has."""
    return struct.pack("<IBI", 0xFD2FB528, 0xA0, stated) + (len(content) << 3 | 1).to_bytes(3, "little") + content


@pytest.mark.parametrize("stated", [1, 30_000, 350_000, 1 << 30, 0xFFFF_FFFF])
def test_frames_that_lie_about_their_size_take_no_memory(stated):
    frames = [lying_frame(stated)] * 2000
    joined, offsets = b"".join(frames), [len(frames[0]) * number for number in range(len(frames) + 1)]
    tracemalloc.start()
    for decompress in (lambda: TRAINED.decompress_many(frames), lambda: TRAINED.decompress_buffer(joined, offsets)):
        with pytest.raises(mithril.CorruptError, match="record 0"):
            decompress()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < (6 << 20) + 64 * len(joined)
    # Said of a frame in the middle, with frames around it that are right.
    good = TRAINED.compress_many(HELD_OUT[:3])
    with pytest.raises(mithril.CorruptError, match="record 3"):
        TRAINED.decompress_many([*good, lying_frame(stated, b"less than stated, or more"), *good])


def test_records_that_shrink_a_thousandfold_come_back():
    records = [bytes([number]) * 200_000 for number in range(60)]
    frames = TRAINED.compress_many(records)
    assert TRAINED.decompress_many(frames) == records


# Files, copies, updates.


def test_files_are_those_of_the_command(tmp_path):
    path = tmp_path / "records.dict"
    TRAINED.save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["records.dict"]
    assert Dictionary.load(path) == TRAINED
    assert Dictionary.load(str(path), level=19).level == 19
    (tmp_path / "records").write_bytes(b"\n".join(HELD_OUT))
    command = [sys.executable, "-m", "mithril", "dictionary", "compress", path, tmp_path / "records", "--split", "jsonl"]
    subprocess.run([*command, "-o", tmp_path / "packed"], check=True, capture_output=True)
    frames = b"".join(TRAINED.compress_many(HELD_OUT))
    assert (tmp_path / "packed").read_bytes().startswith(frames)
    with pytest.raises(FileNotFoundError):
        Dictionary.load(tmp_path / "absent")
    with pytest.raises(FileNotFoundError):
        TRAINED.save(tmp_path / "absent" / "records.dict")


def test_copies_are_equal():
    dictionary = train(RECORDS, size=4096)
    copy = pickle.loads(pickle.dumps(dictionary))
    assert copy == dictionary
    assert copy.training == dictionary.training
    assert hash(copy) == hash(dictionary)
    assert copy != Dictionary(dictionary, level=19)
    assert copy != dictionary.data
    assert bytes(copy) == dictionary.data
    assert dictionary.data.endswith(dictionary.content)
    assert str(dictionary.id) in repr(dictionary)


def test_update_follows_the_records():
    newer = [text.replace(b'"agent": "curl', b'"region": "eu-west", "client": "wget') for text in RECORDS]
    updated = update(TRAINED, newer[:2400])
    assert (updated.level, len(updated) <= len(TRAINED)) == (TRAINED.level, True)
    assert updated.id != TRAINED.id
    assert updated.evaluate(newer[2400:]).coded < TRAINED.evaluate(newer[2400:]).coded


# The interpreter.


MANY = HELD_OUT * 60
JOINED = b"".join(MANY)
OFFSETS = np.cumsum([0] + [len(original) for original in MANY])
SLOW = Dictionary(TRAINED, level=19)


@pytest.mark.parametrize(
    "work",
    [
        lambda: TRAINED.compress_many(MANY, threads=1),
        lambda: TRAINED.compress_buffer(JOINED, OFFSETS, threads=1),
        lambda: SLOW.compress(JOINED[:1_000_000]),
        lambda: train(RECORDS, size=8192, search=False, threads=1),
    ],
    ids=["list", "buffer", "one", "train"],
)
def test_other_threads_run_meanwhile(work):
    counted, done = [0], threading.Event()

    def count():
        while not done.is_set():
            counted[0] += 1
            time.sleep(0)

    counter = threading.Thread(target=count)
    counter.start()
    before = counted[0]
    work()
    during = counted[0] - before
    done.set()
    counter.join()
    # A call that kept the interpreter would give the other thread a turn at its ends at most.
    assert during > 20


def test_threads_share_a_dictionary():
    expected = TRAINED.compress_many(HELD_OUT)
    failures = []

    def work():
        for _ in range(5):
            frames = [TRAINED.compress(original) for original in HELD_OUT]
            if frames != expected or TRAINED.decompress_many(expected) != HELD_OUT:
                failures.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
