#!/usr/bin/env bash
# Checks that own sources are formatted as .clang-format says; run as a test. Releases of clang-format differ in
# details, so only the one pinned in versions.env decides: with another the check skips (exit 77).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source versions.env

for program in "clang-format-$CLANG_FORMAT_VERSION" clang-format; do
  if command -v "$program" >/dev/null && "$program" --version | grep -q "version $CLANG_FORMAT_VERSION\."; then
    { git ls-files -z -- '*.h' '*.cpp' '*.cu' '*.cuh' 2>/dev/null ||
      find . \( -name 'build*' -o -name '.*' -not -name . \) -prune -o -regex '.*\.\(h\|cpp\|cu\|cuh\)' -print0; } | xargs -0 "$program" --dry-run --Werror
    echo "all sources are formatted"
    exit 0
  fi
done
echo "clang-format $CLANG_FORMAT_VERSION is not here; formatting was not checked"
exit 77
