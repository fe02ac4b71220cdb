#!/usr/bin/env bash
# Builds the programs, converts the bundled reference checkpoint in two ways, and shows original and conversions side by side.
# Needs nothing but git and python3 on Debian 12 or Ubuntu 24.04; everything it makes lies under build/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly MODEL=tests/data/reference-llama
readonly OUT=build/quickstart
readonly CALIBRATION=tests/data/texts/tinystories_calibration.txt  # text of the model's own kind
readonly HELD_OUT=tests/data/texts/tinystories_heldout.txt
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

mkdir -p "$OUT"

# convert NAME OPTIONS: converts with these options, then judges and runs the result.
convert() {
  local name=$1
  shift
  run kvconvert "$@" "$MODEL" --calibration "$CALIBRATION" --out "$OUT/$name" --force --no-validate
  kvvalidate "$MODEL" "$OUT/$name" --text "$HELD_OUT" --num-sequences 6 --recall 2 --quiet --json >"$OUT/$name-report.json"
  kvrun "$OUT/$name" --prompt "$PROMPT" --max-new-tokens $TOKENS --quiet --json >"$OUT/$name.json"
}

step "Convert, two ways: a quarter of the cache (coded), and layers that share latents (CommonKV)"
kvrun "$MODEL" --prompt "$PROMPT" --max-new-tokens $TOKENS --quiet --json >"$OUT/original.json"
convert coded --kept-ratio 0.25
convert commonkv --group 4 --rank 0.7

step "Original and conversions side by side"
python3 scripts/compare_runs.py original="$OUT/original.json" coded="$OUT/coded.json,$OUT/coded-report.json" \
  commonkv="$OUT/commonkv.json,$OUT/commonkv-report.json"

step "Next"
echo "Your own model:  build/release/bin/kvconvert --plan --kept-ratio 0.25 DIRECTORY   (what it would cost and save, in a second)"
echo "                 build/release/bin/kvconvert --kept-ratio 0.25 DIRECTORY --out NEW_DIRECTORY"
