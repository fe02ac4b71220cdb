#!/usr/bin/env bash
# Builds the programs, converts the bundled reference checkpoint, and runs original and conversion side by side.
# Needs nothing but git and python3 on Debian 12 or Ubuntu 24.04; everything it makes lies under build/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly MODEL=tests/data/reference-llama
readonly OUT=build/quickstart/reference-llama-converted
readonly PROMPT="Once upon a time, there was a little girl named Lily. She loved to play outside in the park with her friends. One day,"
readonly TOKENS=400

step() { printf '\n== %s\n' "$*"; }
run() { echo "\$ $*"; "$@"; }

step "Dependencies"
scripts/setup.sh

step "Build"
cmake --preset release ${KVC_TORCH_DIR:+"-DKVC_TORCH_DIR=$KVC_TORCH_DIR"} >/dev/null
cmake --build --preset release
export PATH="$PWD/build/release/bin:$PATH"

step "Convert"
mkdir -p build/quickstart
run kvconvert --group 4 --rank 0.7 "$MODEL" --out "$OUT" --force

step "Run the original and the conversion"
kvrun "$MODEL" --prompt "$PROMPT" --max-new-tokens $TOKENS --json >build/quickstart/original.json
kvrun "$OUT" --prompt "$PROMPT" --max-new-tokens $TOKENS --json >build/quickstart/converted.json
python3 scripts/compare_runs.py build/quickstart/original.json build/quickstart/converted.json

step "Next"
echo "Your own model:  build/release/bin/kvconvert --plan DIRECTORY   (what it would cost and save, in a second)"
echo "                 build/release/bin/kvconvert --group 4 --rank 0.7 DIRECTORY --out NEW_DIRECTORY"
