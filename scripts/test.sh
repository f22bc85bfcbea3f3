#!/usr/bin/env bash
# Sets up and runs every check, and stops at the first that fails: bash scripts/test.sh
#
# Needs Rust 1.95, a C compiler and Python 3.11, and the network the first time: Python packages go into environments of
# their own below the target directory; Chromium, a software GPU, npm and an emulator of ARM come from Debian's packages where
# they are missing. Fuzzing also needs a nightly toolchain and cargo-fuzz, ARM the standard library for it; all are installed
# if rustup is there. What cannot be had, the script names and goes on, but fails if CI=true. MITHRIL_SKIP_FUZZ=1 leaves
# fuzzing out. Everything is built in the usual target directories.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}
passed=0
not_run=
heading="setting up"

finish() {
    local status=$?
    [ -z "$not_run" ] || echo "not run: $not_run"
    if [ "$status" -eq 0 ]; then
        echo "$passed passed, 0 failed"
    else
        echo "failed: $heading"
        echo "$passed passed, 1 failed"
    fi
}
trap finish EXIT
# A script that is told to end has not passed.
trap 'exit 130' INT
trap 'exit 143' TERM

# step HEADING COMMAND...: a command that fails ends the script, so it must not stand in a condition.
step() {
    heading=$1
    shift
    local start=$SECONDS before=$not_run
    echo "== $heading"
    "$@"
    [ "$not_run" != "$before" ] || passed=$((passed + 1))
    echo "   $((SECONDS - start)) s"
}

# install_packages NAME...: from Debian, as root or through sudo.
install_packages() {
    local as_root=
    [ "$(id -u)" -eq 0 ] || as_root=sudo
    $as_root apt-get update -qq
    DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

tools() {
    rustc --version
    python3 --version
    python3 -c 'import sys; sys.exit("Python 3.11 or later is needed" if sys.version_info < (3, 11) else 0)'
    if ! cargo fmt --version || ! cargo clippy --version; then
        rustup component add rustfmt clippy
    fi
    # Kernels run on a GPU, or on software: then Debian's package has the driver.
    if ! ls /usr/share/vulkan/icd.d/*.json /etc/vulkan/icd.d/*.json >/dev/null 2>&1 && command -v apt-get >/dev/null; then
        install_packages mesa-vulkan-drivers libvulkan1
    fi
    local python=$target/venv/bin/python
    [ -x "$python" ] || python3 -m venv "$target/venv"
    "$python" -m pip install --quiet --disable-pip-version-check --requirement scripts/requirements.txt
}

format() {
    cargo fmt --all --check
    # A workspace of its own, because it needs a nightly toolchain.
    cargo fmt --manifest-path fuzz/Cargo.toml --check
}

documentation() {
    # Libraries only: the program has the name of one of them, and its documentation is `--help`.
    RUSTDOCFLAGS="-D warnings" cargo doc --quiet --workspace --no-deps --lib
    cargo test --quiet --workspace --doc
}

# Four builds must write the same bytes: debug and release, with kernels and without.
byte_identity() {
    local digests=$target/digests scalar="--features mithril-codec/scalar-only" build
    mkdir -p "$digests"
    cargo run --quiet --package xtask -- digest >"$digests/debug"
    cargo run --quiet --package xtask $scalar -- digest >"$digests/debug-scalar"
    cargo run --quiet --release --package xtask -- digest >"$digests/release"
    cargo run --quiet --release --package xtask $scalar -- digest >"$digests/release-scalar"
    for build in debug-scalar release release-scalar; do
        diff "$digests/debug" "$digests/$build"
    done
    echo "$(wc -l <"$digests/debug") frames are the same in four builds"
    if [ -r /proc/cpuinfo ] && ! grep -q avx2 /proc/cpuinfo; then
        echo "this CPU has no AVX2: all four builds ran scalar code"
    fi
}

# The codec's tests, and the same bytes once more, with NEON kernels in an emulator.
arm() {
    local arm=aarch64-unknown-linux-gnu
    case $(uname -m) in
    aarch64 | arm64)
        echo "this is an ARM machine: all tests ran there"
        return
        ;;
    esac
    has_emulator() { command -v qemu-aarch64 && command -v aarch64-linux-gnu-gcc; } >/dev/null
    if ! has_emulator && command -v apt-get >/dev/null; then
        install_packages qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross
    fi
    if ! has_emulator || ! rustup target add "$arm"; then
        not_run="${not_run:+$not_run; }ARM, because there is no emulator or no standard library for it"
        [ "${CI:-}" != true ]
        return
    fi
    export CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc AR_aarch64_unknown_linux_gnu=aarch64-linux-gnu-ar
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu"
    cargo clippy --quiet --target "$arm" --package mithril-codec -- -D warnings
    cargo test --quiet --target "$arm" --package mithril-codec --lib
    # Optimised like tests: without that the emulator takes minutes.
    cargo run --quiet --profile test --target "$arm" --package xtask -- digest >"$target/digests/arm"
    diff "$target/digests/debug" "$target/digests/arm"
    echo "$(wc -l <"$target/digests/arm") frames are the same on ARM"
}

# What dependencies may bring, and the notices that go with the command and the wheel.
licenses() {
    cargo xtask check-notices
    scripts/deny.sh
}

# 1 GiB through the stream encoder and decoder must stay within the 128 MiB that their documentation promises.
stream_memory() {
    if [ ! -r /proc/self/status ]; then
        not_run="${not_run:+$not_run; }memory of streams, which is read from /proc"
        return
    fi
    local report peak
    report=$(cargo run --quiet --release --package mithril --example stream_memory -- 1 2)
    echo "$report"
    peak=$(sed -n 's/^peak memory.*: *\([0-9]*\) kB$/\1/p' <<<"$report")
    [ "$peak" -le 131072 ]
}

# Workers of a checkpoint store are killed, told to end and raced; then 512 MiB go through one in bounded memory.
store_faults() {
    local worker=$target/release/examples/store_worker report kb
    cargo build --quiet --release --package mithril --features cloud --example store_worker
    python3 tools/store_faults.py "$worker"
    rm -rf "$target/store-memory"
    report=$("$worker" memory "$target/store-memory" 512)
    rm -rf "$target/store-memory"
    echo "$report"
    for kb in $(grep -o '[0-9]* kB' <<<"$report" | cut -d' ' -f1); do
        [ "$kb" -le 524288 ]
    done
}

# The same suite for S3, Azure and HTTP, against servers on this machine.
object_stores() {
    if ! command -v npm >/dev/null && command -v apt-get >/dev/null; then
        install_packages npm
    fi
    if ! command -v npm >/dev/null; then
        not_run="${not_run:+$not_run; }object stores, because there is no npm"
        [ "${CI:-}" != true ]
        return
    fi
    cargo build --quiet --release --package mithril --features cloud --example store_worker \
        --example storage_conformance
    python3 tools/object_stores.py "$target/release/examples" --servers "$target/object-stores"
}

fuzz() {
    local why
    if [ "${MITHRIL_SKIP_FUZZ:-}" = 1 ]; then
        not_run="${not_run:+$not_run; }fuzzing, because MITHRIL_SKIP_FUZZ is 1"
        return
    elif ! rustup toolchain list 2>/dev/null | grep -q '^nightly' &&
        ! rustup toolchain install nightly --profile minimal; then
        why="there is no nightly toolchain"
    elif ! command -v cargo-fuzz >/dev/null && ! cargo install --quiet --locked cargo-fuzz --version 0.13.2; then
        why="cargo-fuzz does not install"
    else
        # The same inputs each time: whether a change passes must not be a matter of luck. Longer runs look for new ones.
        MITHRIL_FUZZ_SEED=1 scripts/fuzz.sh 10
        return
    fi
    not_run="${not_run:+$not_run; }fuzzing, because $why"
    [ "${CI:-}" != true ]
}

# Rules for `unsafe` that no test sees, in an interpreter that knows them.
miri() {
    if ! cargo +nightly miri --version >/dev/null 2>&1 &&
        ! rustup toolchain install nightly --profile minimal --component miri,rust-src; then
        not_run="${not_run:+$not_run; }Miri, because it does not install"
        [ "${CI:-}" != true ]
        return
    fi
    scripts/sanitize.sh miri
}

bench_smoke() {
    local effort
    for effort in fast balanced max; do
        cargo run --quiet --release -- bench assets/minilm-demo.safetensors --effort "$effort" --repeat 1 \
            --against zstd,lz4
    done
}

# The package is built once, as users get it, and everything is checked against the installed wheel.
python_package() {
    local environment=$target/venv-python
    [ -x "$environment/bin/python" ] || python3 -m venv "$environment"
    "$environment/bin/pip" install --quiet --disable-pip-version-check --requirement scripts/requirements-python.txt
    "$environment/bin/python" scripts/install_torch.py
    # A source package that would fetch torch's GPU libraries and look for kernels to build: it needs neither here.
    DS_BUILD_OPS=0 "$environment/bin/pip" install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
        deepspeed==0.19.8
    # These name torch as something they need, which would fetch it with its GPU libraries.
    "$environment/bin/pip" install --quiet --disable-pip-version-check --no-deps accelerate==1.15.0 \
        pytorch-lightning==2.6.6 torchmetrics==1.9.0
    rm -rf "$target/wheels"
    "$environment/bin/maturin" build --quiet --release --out "$target/wheels"
    "$environment/bin/pip" install --quiet --disable-pip-version-check --force-reinstall --no-deps "$target"/wheels/*.whl
}

# The source package holds all that cargo needs to build it; the build itself is that of the wheel.
python_sources() {
    local sources=$target/sdist
    rm -rf "$sources"
    "$target/venv-python/bin/maturin" sdist --out "$sources"
    tar -xzf "$sources"/*.tar.gz -C "$sources" --strip-components 1
    cargo metadata --quiet --locked --format-version 1 --manifest-path "$sources/crates/mithril-python/Cargo.toml" >/dev/null
    find crates/*/src crates/mithril-python/python -name '*.rs' -o -name '*.py' -o -name '*.pyi' -o -name '*.typed' |
        while read -r file; do
            cmp "$file" "$sources/$file"
        done
}

python_static_checks() {
    local bin=$target/venv-python/bin package=crates/mithril-python
    "$bin/ruff" check $package
    "$bin/ruff" format --check $package
    "$bin/mypy" $package/python/mithril
    "$bin/stubtest" mithril._mithril --mypy-config-file pyproject.toml
}

step "tools" tools
step "format" format
step "clippy" cargo clippy --quiet --locked --workspace --all-targets --features mithril-python/gpu -- -D warnings
step "clippy without SIMD" cargo clippy --quiet --locked --package mithril-codec --features mithril-codec/scalar-only \
    -- -D warnings
step "ruff" "$target/venv/bin/ruff" check tools docs scripts
step "tests" cargo test --quiet --workspace --all-targets --features mithril-cli/gpu
step "tests without SIMD" cargo test --quiet --package mithril-codec --package mithril-format \
    --features mithril-codec/scalar-only --lib --tests
step "same bytes from every build" byte_identity
step "tests and bytes on ARM" arm
step "documentation and its examples" documentation
step "reference decoder over the golden files" \
    "$target/venv/bin/python" docs/format/reference_decoder.py --check golden
step "directions between crates" cargo xtask check-crates
step "licenses of dependencies" licenses
step "memory of streams" stream_memory
step "fuzzing, 10 s per target" fuzz
step "Miri over the codec" miri
step "demo" cargo run --quiet --release -- demo
step "bench on the demo model" bench_smoke
step "report in a browser" python3 tools/test_report.py "$target/release/mithril"
step "Python package" python_package
step "Python source package" python_sources
step "Python types and style" python_static_checks
step "Python tests" "$target/venv-python/bin/pytest" --quiet
step "ranks of DeepSpeed killed while they save, 8 times" "$target/venv-python/bin/python" tools/deepspeed_faults.py \
    --kills 8
step "ranks of PyTorch killed while they save, 6 times" "$target/venv-python/bin/python" tools/dcp_faults.py --kills 6
step "training with FSDP2 killed and resumed, 2 times" "$target/venv-python/bin/python" tools/fsdp_resume.py --kills 2
step "killed at work, 30 times" python3 tools/kill_loop.py "$target/release/mithril" assets/minilm-demo.safetensors \
    --kills 30
step "saves of the command and of Python killed, 20 times" python3 tools/store_attacks.py kills "$target/release/mithril" \
    --python "$target/venv-python/bin/python" --kills 20
step "four processes race on a store" python3 tools/store_attacks.py race "$target/release/mithril"
step "full disks" python3 tools/command_attacks.py disk "$target/release/mithril"
step "signals to writing commands" python3 tools/command_attacks.py signals "$target/release/mithril"
step "checkpoint stores under faults" store_faults
step "object stores" object_stores
step "DFloat11 against the official package" python3 tools/df11_oracle.py --venv "$target/venv-df11" \
    --mithril "$target/release/mithril" --pieces-of assets/minilm-demo.safetensors
