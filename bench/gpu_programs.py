#!/usr/bin/env python3
"""kvrun and kvconvert on a GPU with a model of an 8B's shape, and transformers beside.

gpu_programs.py --run COMMAND [--json FILE] [--layers 16] [--model DIR] [--device cuda] [--seconds 200] [--no-peer]

COMMAND starts a program, as in "gpu-bundle/run.sh --exec". The model has random weights (make_random_checkpoint.py), or is DIR.
Measured, in this order: steps and prompts of kvrun over dense caches, and of transformers; a conversion (coded, rotated, kept 0.25); steps and prompts over
its codes. FILE is written anew after each. What would begin after so many seconds is left out.
"""

import argparse
import json
import os
import pathlib
import random
import shlex
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
# Runs in a process of its own, which gives the GPU's memory back.
TRANSFORMERS = """
import json, sys
sys.path.insert(0, sys.argv[1])
from bench_decode_step import Peer
peer, result = Peer(sys.argv[2], "bfloat16", int(sys.argv[4]), sys.argv[3]), {}
for batch, new in json.loads(sys.stdin.read()):
    peer.generate_batch(batch, 4)
    first = min(peer.generate_batch(batch, 1)[0] for _ in range(2))
    result[f"({len(batch)}, {len(batch[0])})"] = {"prompt_s": first, "step_ms": 1e3 * (peer.generate_batch(batch, new)[0] - first) / (new - 1)}
print(json.dumps(result))
"""


def batch_of(length, sequences):
    chosen = random.Random(length)
    return [[chosen.randrange(3, 500) for _ in range(length)] for _ in range(sequences)]


class Programs:
    def __init__(self, options, work):
        self.options, self.work = options, work
        self.end = time.monotonic() + options.seconds
        self.report = {"layers": options.layers, "device": options.device, "results": {}, "failed": {}}

    def call(self, *command, given=None):
        left = self.end - time.monotonic()
        if left < 10:
            raise TimeoutError("no time left")
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=left, check=False, input=given or "")
        if done.returncode != 0:
            raise RuntimeError(f"exit code {done.returncode}: {done.stderr.strip()[-1500:]}")
        return done.stdout

    def transformers(self, model, shapes):
        batches = [(batch_of(length, sequences), new) for length, sequences, new in shapes]
        return json.loads(self.call(sys.executable, "-c", TRANSFORMERS, HERE, model, self.options.device, os.cpu_count(),
                                    given=json.dumps(batches)))

    def program(self, *arguments):
        return self.call(*shlex.split(self.options.run), *arguments, "--device", self.options.device, "--quiet")

    def measure(self, name, work):
        begin = time.monotonic()
        try:
            self.report["results"][name] = {**work(), "wall_s": round(time.monotonic() - begin, 2)}
        except (RuntimeError, TimeoutError, subprocess.TimeoutExpired, ValueError, KeyError) as error:
            self.report["failed"][name] = str(error)
        print(name, json.dumps(self.report["results"].get(name) or self.report["failed"][name]), flush=True)
        if self.options.json:
            self.options.json.write_text(json.dumps(self.report, indent=2) + "\n", encoding="utf-8")

    def kvrun(self, model, length, sequences, new):
        ids = self.work / "ids.json"
        ids.write_text(json.dumps(batch_of(length, sequences)), encoding="utf-8")
        result = json.loads(self.program("kvrun", model, "--ids", ids, "--max-new-tokens", new, "--ignore-eos", "--warm-up", "--json",
                                         "--dtype", "bfloat16"))
        timing = result["timing"]
        return {"prompt_s": length * sequences / timing["prefill_tokens_per_second"],
                "step_ms": 1e3 * sequences / timing["decode_tokens_per_second"], "timing": timing, "memory": result.get("memory")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", required=True)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--no-peer", action="store_true", help="without transformers")
    parser.add_argument("--seconds", type=float, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvc-gpu-programs-") as directory:
        work = pathlib.Path(directory)
        bench = Programs(options, work)
        model, coded = options.model or work / "model", work / "coded"
        small = options.hidden < 1024
        shapes = [(512, 1, 64), (8000, 1, 32), (2048, 16, 32)] if not small else [(64, 1, 4), (32, 2, 4)]
        size = ["--hidden", options.hidden] if not small else ["--hidden", options.hidden, "--intermediate", 4 * options.hidden, "--heads", 4,
                                                               "--kv-heads", 2]
        if not options.model:
            bench.measure("writing the model", lambda: {"out": bench.call(
                sys.executable, HERE / "make_random_checkpoint.py", model, "--layers", options.layers, *size, "--shards", "2",
                "--max-position", 16384)[-200:]})
        for shape in shapes:
            bench.measure(f"kvrun dense ({shape[1]}, {shape[0]})", lambda shape=shape: bench.kvrun(model, *shape))
        if not options.no_peer:
            bench.measure("transformers", lambda: bench.transformers(model, shapes))
        bench.measure("conversion", lambda: {"out": bench.program(
            "kvconvert", model, "--out", coded, "--method", "coded", "--form", "rotated", "--scope", "head", "--kept-ratio", "0.25",
            "--num-sequences", 16, "--seq-len", 64 if small else 1024, "--no-validate", "--calibration",
            HERE.parent / "tests/data/texts/tinystories_calibration.txt")[-200:]})
        for shape in shapes:
            bench.measure(f"kvrun rotated ({shape[1]}, {shape[0]})", lambda shape=shape: bench.kvrun(coded, *shape))
    return 1 if bench.report["failed"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
