#!/usr/bin/env bash
# The tests of PyTorch's distributed checkpoints with another version of torch, in an environment of its own.
#
#     bash scripts/old_torch.sh VERSION
#
# Takes the wheel that scripts/test.sh has built, and about 900 MB from the package registry the first time: too much for
# every run. scripts/install_torch.py has the versions.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=${1:?which version of torch?}
target=${CARGO_TARGET_DIR:-target}
environment=$target/venv-torch-$version
[ -x "$environment/bin/python" ] || python3 -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check pytest numpy ml_dtypes safetensors
"$environment/bin/python" scripts/install_torch.py "$version"
"$environment/bin/pip" install --quiet --disable-pip-version-check --force-reinstall --no-deps "$target"/wheels/*.whl
tests=crates/mithril-python/tests
"$environment/bin/python" -m pytest --quiet $tests/test_torch_checkpoint.py $tests/test_torch_rules.py \
    $tests/test_torch_command.py
