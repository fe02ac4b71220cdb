#!/usr/bin/env bash
# compare_methods.sh CHECKPOINT [options of compare_methods.py]: every method at equal KV bytes, as a table and a plot
# of KL divergence, perplexity ratio and recall against bytes.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
for preset in release cpu; do
  if [[ -x $root/build/$preset/bin/kvconvert ]]; then
    exec python3 "$root/bench/compare_methods.py" --bin "$root/build/$preset/bin" "$@"
  fi
done
echo "no built programs; run scripts/quickstart.sh first" >&2
exit 1
