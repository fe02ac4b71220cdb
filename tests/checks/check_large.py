#!/usr/bin/env python3
"""Converts a random checkpoint of an 8B's shape and fails when that takes more memory than a small machine has.

check_large.py --bin build/cpu/bin [--scratch DIRECTORY] [--limit-gib 8]

The checkpoint (2.8 GB of disk) and the output (about 20 GB) are made under --scratch and removed afterwards. Fisher
information is left out (--no-ls-fisher) and the calibration is short; everything else is as for a real model.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SETTINGS = ("--group", "4", "--rank", "0.7", "--no-ls-fisher", "--num-sequences", "4", "--seq-len", "64",
            "--factor-dtype", "bfloat16", "--no-validate")


def anonymous_bytes(pid):
    """Memory of a process that is no file's: what a machine must really have."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(("RssAnon", "RssShmem")))


def run_measured(command):
    """(exit code, seconds, peak resident bytes, peak resident bytes that no file backs)."""
    started, anonymous = time.monotonic(), 0
    process = subprocess.Popen(command)
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            seconds = time.monotonic() - started
            return os.waitstatus_to_exitcode(status), seconds, usage.ru_maxrss * 1024, anonymous
        anonymous = max(anonymous, anonymous_bytes(process.pid))
        time.sleep(0.2)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--scratch", type=pathlib.Path, default=None)
    parser.add_argument("--checkpoint", type=pathlib.Path, default=None, help="use this one instead of making one")
    parser.add_argument("--limit-gib", type=float, default=8)
    options = parser.parse_args()
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="kvc-large-", dir=options.scratch))
    try:
        checkpoint = options.checkpoint or scratch / "checkpoint"
        if not options.checkpoint:
            subprocess.run([sys.executable, ROOT / "bench" / "make_random_checkpoint.py", checkpoint], check=True)
        code, seconds, resident, anonymous = run_measured(
            [options.bin / "kvconvert", checkpoint, "--out", scratch / "converted", *SETTINGS])
    finally:
        shutil.rmtree(scratch)
    gib = 1 << 30
    print(f"exit {code}, {seconds:.0f} s, peak {resident / gib:.2f} GiB resident, {anonymous / gib:.2f} GiB of it not of files")
    if code != 0 or resident > options.limit_gib * gib:
        sys.exit(f"expected exit 0 within {options.limit_gib} GiB")


if __name__ == "__main__":
    main()
