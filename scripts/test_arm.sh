#!/usr/bin/env bash
# Compiles the CPU kernels (runtime/kernels, model/kernels) and their tests for 64-bit ARM and runs them in an emulator
# of that processor, NEON against the plain references. Installs what is missing: a cross compiler, qemu, and the
# libraries for ARM, from the same archive (Debian). Takes about ten minutes.
#
#   scripts/test_arm.sh [CTEST OPTIONS]
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
build="$root/build/arm"

packages=(g++-aarch64-linux-gnu qemu-user-static libhwy-dev:arm64 libgtest-dev:arm64 libgmock-dev:arm64)
if ! dpkg -s "${packages[@]}" >/dev/null 2>&1; then
  echo "== installing ${packages[*]}"
  as_root=()
  [ "$(id -u)" = 0 ] || as_root=(sudo)
  "${as_root[@]}" dpkg --add-architecture arm64
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${packages[@]}"
fi

echo "== building in $build"
cmake -S "$root/tests/arm" -B "$build" -G Ninja -DCMAKE_TOOLCHAIN_FILE="$root/tests/arm/toolchain.cmake" \
  -DCMAKE_BUILD_TYPE=Release >/dev/null
cmake --build "$build"
echo "== testing"
exec ctest --test-dir "$build" --output-on-failure --parallel "$(nproc)" "$@"
