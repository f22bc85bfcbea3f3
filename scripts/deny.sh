#!/bin/sh
# Checks what comes in with dependencies: licenses, versions that are there twice, sources, known holes. scripts/deny.sh
# deny.toml has the rules. Holes are looked up in the database of RustSec; where it cannot be had, the script says so.
set -eu
cd "$(dirname "$0")/.."
command -v cargo-deny >/dev/null || cargo install --quiet --locked --debug cargo-deny --version 0.20.2
cargo deny check --hide-inclusion-graph licenses bans sources
if cargo deny fetch db >/dev/null 2>&1; then
    cargo deny check --hide-inclusion-graph advisories
else
    echo "not run: known holes, because the database of RustSec cannot be had"
fi
