"""What the tests of engines share: converted checkpoints, made once, and the package from the source tree."""

import functools
import gc
import json
import os
import pathlib
import shutil
import struct
import subprocess
import tempfile
import atexit

BIN = pathlib.Path(os.environ["KVC_BIN_DIR"])
DATA = pathlib.Path(os.environ["KVC_TEST_DATA"])
REFERENCE = DATA / "reference-llama"
CALIBRATION = DATA / "texts/tinystories_calibration.txt"
HELD_OUT = DATA / "texts/tinystories_heldout.txt"

gc.freeze()  # what torch and transformers have made stays, and collections need not look at it

_ROOT = pathlib.Path(tempfile.mkdtemp(prefix="kvc-engines-"))
atexit.register(shutil.rmtree, _ROOT, ignore_errors=True)


def run(program, *arguments):
    process = subprocess.run([BIN / program, *map(str, arguments)], capture_output=True, text=True, timeout=300)
    if process.returncode != 0:
        raise AssertionError(f"{program} {arguments}:\n{process.stderr}")
    return process.stdout


def convert(source, *options, exact=("--prefill", "coded")):
    """A new directory with a conversion of `source`."""
    out = pathlib.Path(tempfile.mkdtemp(dir=_ROOT)) / "converted"
    run("kvconvert", *options, *exact, "--no-validate", "--quiet", "--calibration", CALIBRATION, "--out", out, source)
    return out


@functools.cache
def reference(*options):
    """The reference checkpoint at kept_ratio 0.25. Conversions share what they measure of it; scope group measures more."""
    measured = _ROOT / ("work-of-groups" if "group" in options else "work")
    return convert(REFERENCE, "--kept-ratio", "0.25", "--num-sequences", "10", "--seq-len", "1024", "--work", measured, *options)


def zoo(case, *options, method="coded", exact=("--prefill", "coded")):
    """A conversion of a tiny checkpoint of a family; coded: with 8-bit codes, as exact as codes are."""
    source = pathlib.Path(tempfile.mkdtemp(dir=_ROOT)) / case
    shutil.copytree(DATA / "zoo" / case, source)
    shutil.copy(DATA / "zoo/tokenizer.json", source)
    eight_bits = ("--kept-ratio", "0.5", "--metric", "none") if method == "coded" else ()
    return convert(source, "--method", method, *eight_bits, "--num-sequences", "10", "--seq-len", "64", *options, exact=exact)


def copy_of(directory):
    """A copy that a test may damage."""
    target = pathlib.Path(tempfile.mkdtemp(dir=_ROOT)) / "damaged"
    shutil.copytree(directory, target)
    return target


def edit_config(directory, change):
    path = directory / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def tensor_place(path, name):
    """Where a tensor's bytes begin and end in a safetensors file."""
    with open(path, "rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        begin, end = json.loads(file.read(length))[name]["data_offsets"]
    return 8 + length + begin, 8 + length + end
