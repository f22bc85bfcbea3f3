#!/bin/sh
# Fuzzes every target, or those named: scripts/fuzz.sh [seconds per target, default 10] [target...]
# Starts from the committed corpus; what is found goes to fuzz/target/found. Fails when a target crashes.
# MITHRIL_FUZZ_SEED makes a run from a clean checkout try the same inputs each time.
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-10}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- decode_frame round_trip huffman_decode rans_decode against_scalar read_container read_safetensors read_pt read_gguf df11_decode apply_delta dictionary_load ecq_decode gguf_blocks read_manifest
command -v cargo-fuzz >/dev/null || cargo install cargo-fuzz --version 0.13.2 --locked
toolchain=nightly
rustup toolchain list | grep -q '^nightly' || rustup toolchain install nightly --profile minimal
# The C libraries are built by the system's compiler, whose address checks do not fit Rust's: they report false errors
# in zstd. The Rust code is checked.
export CFLAGS="${CFLAGS:-} -fno-sanitize=all"
failed=0
for target in "$@"; do
    found=fuzz/target/found/$target
    mkdir -p "$found"
    log=$found.log
    # A build that fails, or a crash, leaves its story in the log.
    if cargo "+$toolchain" fuzz run "$target" "$found" "fuzz/corpus/$target" -- \
        -max_total_time="$seconds" -seed="${MITHRIL_FUZZ_SEED:-0}" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 >"$log" 2>&1; then
        status=passed
    else
        status=FAILED
        failed=1
        tail -n 60 "$log"
    fi
    executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    echo "$target: $status, ${executions:-no} executions"
done
exit $failed
