#!/usr/bin/env bash
# Makes a bundle of kvrun, kvconvert, kvvalidate and the op library for engines for a machine with a GPU that has torch and nothing else: no HDF5, no
# tokenizer libraries, no network. It holds the programs of the cuda preset, stripped, and the libraries that they need beside
# glibc, libstdc++, torch and CUDA. Needs no GPU.
#
#   scripts/gpu_bundle.sh [--out FILE] [--arch LIST] [--build DIR] [--programs DIR] [--data]
#
#   --out FILE       the archive (default: build/gpu-bundle.tar.xz); a name in .tar: not compressed
#   --arch LIST      GPU architectures, as in "90a" or "80;90a" (default: 90a, or those that --programs were built for)
#   --build DIR      where to build (default: build/gpu-bundle-build)
#   --programs DIR   packs the programs of this directory, and the op library of ../lib beside it, and builds nothing
#   --data           packs tests/data/reference-llama and texts too: run.sh then needs no --data
#
# There: python3 -m tarfile -e gpu-bundle.tar.xz DIR && DIR/gpu-bundle/run.sh --data tests/data
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
out="$root/build/gpu-bundle.tar.xz" arch="" build="$root/build/gpu-bundle-build" programs="" data=""
readonly PROGRAMS=(kvrun kvconvert kvvalidate)
readonly OPS=libkvconvert_ops.so
# What the other machine has: glibc, g++'s libraries and OpenMP; torch and CUDA.
readonly OF_SYSTEM='ld-linux.*|lib(c|m|dl|pthread|rt|util|resolv|anl|mvec|stdc\+\+|gcc_s|gomp)'
readonly OF_TORCH='lib(torch.*|c10.*|cu(bla|da|dnn|fft|file|pti|rand|solver|sparse).*|nv.*|nccl.*)'
# HDF5 calls these for files in Amazon S3 alone. They would bring 28 other libraries and twice the size.
readonly NEVER_CALLED='^lib(curl|crypto)\.so'

fail() { echo "gpu_bundle: error: $*" >&2; exit 1; }
usage() { sed -n '2,15p' "${BASH_SOURCE[0]}" >&2; exit 2; }
while [ $# -gt 0 ]; do
  case "$1" in
    --out | --arch | --build | --programs) [ $# -ge 2 ] || usage ;;&
    --out) out="$(realpath -m "$2")"; shift 2 ;;
    --arch) arch="$2"; shift 2 ;;
    --build) build="$(realpath -m "$2")"; shift 2 ;;
    --programs) programs="$(realpath -m "$2")"; shift 2 ;;
    --data) data=1; shift ;;
    *) usage ;;
  esac
done

[[ $out == *.tar ]] || command -v xz >/dev/null || fail "no xz; install xz-utils, or pass --out with a name in .tar"
[ -z "$programs" ] || [ -n "$arch" ] ||
  arch="$(sed -n 's/^KVC_CUDA_ARCHITECTURES:[^=]*=//p' "$programs/../CMakeCache.txt" 2>/dev/null || true)"
arch="${arch:-90a}"

needed() { readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'; }

# closure FILE...: "NAME PATH" of the libraries that the files need, and that those need; PATH is - for what is never called.
# What the other machine has is left out, with all that only it needs.
closure() {
  local -A path=() seen=()
  local name file queue=("$@")
  while read -r name file; do path[$name]="$file"; done < <(ldd "$@" | sed -n 's/^\s*\(\S*\) => \(.*\) (0x.*)$/\1 \2/p')
  while [ ${#queue[@]} -gt 0 ]; do
    file="${queue[0]}" queue=("${queue[@]:1}")
    while read -r name; do
      [[ -z ${seen[$name]:-} && ! $name =~ ^($OF_SYSTEM|$OF_TORCH)\.so ]] || continue
      seen[$name]=1
      if [[ $name =~ $NEVER_CALLED && ${file##*/} == libhdf5* ]]; then
        echo "$name -"
      else
        [ -e "${path[$name]:-}" ] || fail "$file: needs $name, which is not on this machine; install its package"
        echo "$name ${path[$name]}"
        queue+=("${path[$name]}")
      fi
    done < <(needed "$file")
  done
}

# stand_in NAME FILE OF...: a library of this name with the functions, and their versions, that the files of OF take from it.
# A call ends the program with a message.
stand_in() {
  local name="$1" file="$2" work version function
  shift 2
  work="$(mktemp -d)"
  for of in "$@"; do
    while read -r version; do
      echo "$version { global: *; };" >>"$work/versions"
      readelf -W --dyn-syms "$of" | sed -n "s/.* UND \([^@]*\)@$version .*/\1/p" >>"$work/functions"
    done < <(readelf -W -V "$of" | awk -v name="$name" '/ File: / {inside = ($5 == name)} / Name: / && inside {print $3}')
  done
  [ "$(sort -u "$work/versions" | wc -l)" = 1 ] || fail "$name: functions of one version expected, found: $(sort -u "$work/versions")"
  printf '#include <stdio.h>\n#include <stdlib.h>\n' >"$work/stand_in.c"
  while read -r function; do
    printf 'void %s(void) { fputs("%s: left out of this bundle, whose %s is a stand-in\\n", stderr); abort(); }\n' \
      "$function" "$function" "$name" >>"$work/stand_in.c"
  done < <(sort -u "$work/functions")
  sort -u "$work/versions" >"$work/script"
  "${CC:-cc}" -shared -fPIC -O1 -fno-builtin -w -o "$file" -Wl,-soname,"$name" -Wl,--version-script,"$work/script" "$work/stand_in.c"
  rm -r "$work"
}

# newest PREFIX FILE...: the newest version of a library's symbols that the files take, as in 2.36.
newest() {
  local prefix="$1"
  shift
  for file in "$@"; do readelf -W -V "$file"; done | grep -oE "\b${prefix}_[0-9.]+" | sed "s/${prefix}_//" | sort -uV | tail -1
}

cd "$root"
# shellcheck source=/dev/null
source versions.env
if [ -z "$programs" ]; then
  [ "$(uname -m)" = x86_64 ] || fail "this machine is $(uname -m); the bundle is for x86_64"
  cmake --preset cuda -B "$build" -DKVC_TESTS=OFF -DKVC_CUDA_ARCHITECTURES="$arch" ${KVC_TORCH_DIR:+"-DKVC_TORCH_DIR=$KVC_TORCH_DIR"}
  cmake --build "$build" --target "${PROGRAMS[@]}" kvconvert_ops
  programs="$build/bin"
fi
for program in "${PROGRAMS[@]}"; do
  [ -x "$programs/$program" ] || fail "$programs/$program: no such program; build it, or leave --programs out"
done

[ -f "$programs/../lib/$OPS" ] || fail "$programs/../lib/$OPS: no such library; build it, or leave --programs out"

staging="$(mktemp -d)"
trap 'rm -rf "$staging"' EXIT
bundle="$staging/gpu-bundle"
mkdir -p "$bundle/bin" "$bundle/lib"
for program in "${PROGRAMS[@]}"; do
  strip -o "$bundle/bin/$program" "$programs/$program"
done
strip --strip-unneeded -o "$bundle/lib/$OPS" "$programs/../lib/$OPS"
libraries="$(closure "${PROGRAMS[@]/#/$programs/}")"
while read -r name file; do
  [ "$file" = - ] || strip --strip-unneeded -o "$bundle/lib/$name" "$file"
done <<<"$libraries"
originals=("$bundle"/bin/* "$bundle"/lib/*)
while read -r name file; do
  [ "$file" != - ] || stand_in "$name" "$bundle/lib/$name" "${originals[@]}"
done <<<"$libraries"
[[ $(needed "$programs/kvrun") == *libtorch_cuda.so* ]] || arch=""
cp scripts/gpu_bundle/run.sh scripts/gpu_bundle/*.py "$bundle"
find python -name '*.py' -print0 | xargs -0 cp --parents -t "$bundle"
if [ -n "$data" ]; then
  mkdir "$bundle/data"
  cp -r tests/data/reference-llama tests/data/texts "$bundle/data"
fi
cat >"$bundle/bundle.json" <<JSON
{
  "torch": "$TORCH_VERSION",
  "architectures": "$arch",
  "glibc": "$(newest GLIBC "${originals[@]}")",
  "libstdc++": "GLIBCXX_$(newest GLIBCXX "${originals[@]}")",
  "commit": "$(git describe --always --dirty 2>/dev/null || true)"
}
JSON

mkdir -p "$(dirname "$out")"
pack=(xz -9e)
[[ $out != *.tar ]] || pack=(cat)
tar -C "$staging" --sort=name --owner=0 --group=0 --numeric-owner -c gpu-bundle | "${pack[@]}" >"$out.partial"
mv "$out.partial" "$out"
echo "gpu_bundle: $out: $(stat -c %s "$out") bytes, for torch $TORCH_VERSION and GPUs of ${arch:-no kind: programs without GPU code}"
