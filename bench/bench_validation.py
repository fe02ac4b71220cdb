#!/usr/bin/env python3
"""How long kvvalidate takes for a row of text, relative to reading it once with both models.

bench_validation.py ORIGINAL CONVERTED [--seq-len 4096] [--rows 4] [--rounds 3] [--dtype float32]

A row's time is that of --rows rows less that of one, so that starts do not count. Prints the medians of the rounds, their
ratio, and the peak of kvvalidate's memory for one row and for all.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("original", type=Path)
    parser.add_argument("converted", type=Path)
    parser.add_argument("--bin", type=Path, default=ROOT / "build/cpu/bin")
    parser.add_argument("--text", type=Path, nargs="*", help="default: built in")
    parser.add_argument("--seq-len", type=int, default=4096)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--block", type=int, default=0)
    return parser.parse_args()


def validate(arguments, rows):
    """(seconds, peak in MiB)"""
    command = [arguments.bin / "kvvalidate", arguments.original, arguments.converted, "--num-sequences", rows, "--seq-len",
               arguments.seq_len, "--dtype", arguments.dtype, "--block", arguments.block, "--json", "--quiet"]
    if arguments.text:
        command += ["--text", *arguments.text]
    start = time.perf_counter()
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{command[0]} ended with {os.waitstatus_to_exitcode(status)}")
    return time.perf_counter() - start, usage.ru_maxrss / 1024


def prefill(arguments, model, ids):
    command = [arguments.bin / "kvrun", model, "--ids", ids, "--dtype", arguments.dtype, "--max-new-tokens", 1, "--ignore-eos", "--json",
               "--warm-up", "--quiet"]
    printed = subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE).stdout
    return json.loads(printed)["timing"]["prefill_seconds"]


def main():
    arguments = parse_arguments()
    row, both, peaks = [], [], {1: 0.0, arguments.rows: 0.0}
    with tempfile.TemporaryDirectory() as directory:
        ids, draw = Path(directory) / "ids.json", random.Random(1)
        ids.write_text(json.dumps([draw.randrange(3, 500) for _ in range(arguments.seq_len)]))
        for _ in range(arguments.rounds):
            seconds = {}
            for rows in peaks:
                seconds[rows], peak = validate(arguments, rows)
                peaks[rows] = max(peaks[rows], peak)
            row.append((seconds[arguments.rows] - seconds[1]) / (arguments.rows - 1))
            both.append(sum(prefill(arguments, model, ids) for model in (arguments.original, arguments.converted)))
    ratio = statistics.median(b / a for a, b in zip(row, both))
    print(f"a row of {arguments.seq_len} tokens: validated in {statistics.median(row):.2f} s, read by both in "
          f"{statistics.median(both):.2f} s: {ratio:.2f} of the speed")
    print("peak of memory: " + ", ".join(f"{peak:.0f} MiB for {rows} rows" for rows, peak in peaks.items()))


if __name__ == "__main__":
    main()
