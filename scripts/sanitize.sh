#!/usr/bin/env bash
# Runs tests where undefined behavior, wrong addresses and races are errors: bash scripts/sanitize.sh [--full] [COMMAND...]
#
# miri     tests of the codec in Miri, an interpreter that knows all rules for `unsafe`: the portable code, then AVX2 kernels.
#          --full: also the NEON kernels whose instructions Miri knows.
# thread   the queues between threads and the saves in the background in Miri, once for each of 8 orders in which threads may
#          run. It reports data races, deadlocks and waiters that are never woken. --full: 64 orders.
# address  the codec's tests with AddressSanitizer, with the widest kernels of this CPU. --full: also the tests of frames,
#          containers and streams, and the committed corpus of fuzzing. The fuzz targets always run with it: scripts/fuzz.sh.
#
# All three by default. Needs a nightly toolchain with Miri and the sources of the standard library, which it installs.
# Miri takes a thousand times as long as the code itself, so tests are named here, and do less in it (`sizes` in their crates).
# It runs no C: tests that call libzstd are left out.
set -euo pipefail
cd "$(dirname "$0")/.."

full=
commands=()
for argument in "$@"; do
    case $argument in
    --full) full=1 ;;
    miri | thread | address) commands+=("$argument") ;;
    *)
        sed -n '2,/^set /{/^#/p}' "$0" >&2
        exit 2
        ;;
    esac
done
[ ${#commands[@]} -gt 0 ] || commands=(miri thread address)

target=${CARGO_TARGET_DIR:-target}
host=$(rustc +nightly -vV 2>/dev/null | sed -n 's/^host: //p' || true)
components=$(rustup component list --toolchain nightly --installed 2>/dev/null || true)
if [[ $components != *miri* || $components != *rust-src* ]]; then
    rustup toolchain install nightly --profile minimal --component miri,rust-src
    host=$(rustc +nightly -vV | sed -n 's/^host: //p')
fi

# Incremental builds of a nightly compiler may crash, and here nothing is built twice.
export CARGO_INCREMENTAL=0

# Code without kernels: coders, contexts, deltas, predictions and bit fields.
portable=(
    checksum::tests::the_sum_never_changes
    delta::number::tests::steps_follow_the_order_of_floats
    entropy::huffman::tests::hostile_tables_are_refused
    entropy::rans8::tests::streams_cut_at_any_length_are_refused
    entropy::rans8::tests::symbols_round_trip_and_kernels_equal_the_scalar_code
    prediction::tests::kernels_sum_like_the_scalar_code
    transform::fields::tiles::tests::every_split_joins_back_for_all_short_lengths
)

# AVX2 kernels that have a test of short inputs, against their scalar definitions.
kernels=(
    checksum::tests::the_sum_never_changes
    contexts::tests::gathering_and_scattering_give_the_plane_back
    delta::tests::elements_of_every_type_and_length_come_back
    ecq::tests::kernels_write_the_bytes_and_give_the_products_of_the_scalar_code
    entropy::rans12::tests::kernels_leave_the_states_and_words_of_the_scalar_code
    entropy::rans8::listed::tests::the_kernels_map_like_the_scalar_code
    entropy::rans8::tests::damaged_streams_give_the_same_result_from_kernel_and_scalar_code
    entropy::rans8::tests::streams_cut_at_any_length_are_refused
    entropy::rans8::tests::symbols_round_trip_and_kernels_equal_the_scalar_code
    prediction::products::tests::kernels_multiply_like_the_scalar_code
    prediction::tests::kernels_sum_like_the_scalar_code
    quantised::products::tests::kernels_give_the_products_of_weights_in_memory
    transform::fields::tiles::tests::every_split_joins_back_for_all_short_lengths
)

# Not those of rANS8: Miri does not know `vqtbx4q_u8`. Of AVX-512 it lacks the compression of bytes, so none of it runs here.
neon=(
    entropy::rans8::listed::tests::the_kernels_map_like_the_scalar_code
    transform::fields::tiles::tests::every_split_joins_back_for_all_short_lengths
)

# All hand-written synchronisation: names that contain one of these.
threaded=(
    pipeline::tests::
    pipeline::ordered::
    pipeline::tasks::
    pipeline::ahead::tests::runs_come_one_by_one
    checkpoint::background::
    checkpoint::compressor::
)

# codec_in_miri FEATURE... -- TEST...: libzstd, lz4 and brotli are left out of the build.
codec_in_miri() {
    local options=()
    while [ "$1" != -- ]; do
        options+=("$1")
        shift
    done
    shift
    local report
    report=$(MIRIFLAGS="-Zmiri-disable-isolation" cargo +nightly miri test --quiet --package mithril-codec \
        --no-default-features "${options[@]}" --lib -- -Zunstable-options --report-time --format=pretty --exact "$@") || {
        echo "$report"
        return 1
    }
    echo "$report"
    # A test that has another name by now would be left out without a word.
    [[ $report == *"test result: ok. $# passed"* ]]
}

run_miri() {
    echo "== Miri: portable code"
    codec_in_miri --features scalar-only -- "${portable[@]}"
    case $host in
    x86_64-*)
        echo "== Miri: AVX2 kernels"
        RUSTFLAGS="-Ctarget-feature=+avx2,+bmi1,+bmi2,+lzcnt,+popcnt" codec_in_miri -- "${kernels[@]}"
        ;;
    esac
    [ -n "$full" ] || return 0
    echo "== Miri: NEON kernels"
    codec_in_miri --target aarch64-unknown-linux-gnu -- "${neon[@]}"
}

run_thread() {
    local n_seeds=8
    [ -z "$full" ] || n_seeds=64
    echo "== Miri: $n_seeds orders of threads"
    # A save in the background ends by itself: nothing joins its thread, which Miri takes for a leak.
    MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-ignore-leaks -Zmiri-many-seeds=0..$n_seeds" \
        cargo +nightly miri test --quiet --package mithril --lib -- "${threaded[@]}"
}

run_address() {
    # The C libraries are built by the system's compiler, whose address checks do not fit Rust's (see scripts/fuzz.sh).
    export CFLAGS="${CFLAGS:-} -fno-sanitize=all" RUSTFLAGS="-Zsanitizer=address" CARGO_TARGET_DIR="$target/sanitize/address"
    echo "== AddressSanitizer: codec"
    cargo +nightly test --quiet --target "$host" --package mithril-codec --lib
    [ -n "$full" ] || return 0
    echo "== AddressSanitizer: frames, containers, streams and the corpus of fuzzing"
    cargo +nightly test --quiet --target "$host" --package mithril --test it
}

for command in "${commands[@]}"; do
    # One by one: what one sets must not reach the others.
    ("run_$command")
done
