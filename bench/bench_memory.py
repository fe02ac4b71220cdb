#!/usr/bin/env python3
"""What a memory budget buys: kvrun's decode rate and KV peak under budgets from just enough to everything rebuilt.

bench_memory.py CONVERTED [ORIGINAL] [--prompt-tokens 2048] [--new-tokens 64] [--rounds 5]

CONVERTED is a factored checkpoint, ORIGINAL the one it was made of (measured beside it, with its plain cache). Every
round runs every budget once, in turn. Prints the decode rate (median of the rounds), the bytes that `kvrun --plan`
forecasts and the peak that was allocated. The exit code is 1 where a peak is more than 2 % from its forecast or above
its budget.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("converted", type=Path)
    parser.add_argument("original", type=Path, nargs="?")
    parser.add_argument("--kvrun", type=Path, default=ROOT / "build/cpu/bin/kvrun")
    parser.add_argument("--prompt-tokens", type=int, default=2048)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    return parser.parse_args()


class Runner:
    def __init__(self, arguments, ids):
        self.arguments = arguments
        self.common = ["--ids", ids, "--max-new-tokens", str(arguments.new_tokens), "--dtype", arguments.dtype,
                       "--ignore-eos", "--json", "--quiet", "--threads", str(arguments.threads)]

    def __call__(self, model, memory, *more):
        command = [self.arguments.kvrun, model, *self.common, *more]
        if memory is not None:
            command += ["--memory", memory]
        return json.loads(subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE).stdout)


def budgets_of(plan, num_groups):
    """From nothing to every group, in equal steps; the first is the smallest that is not refused."""
    least = max(plan["reading_bytes"], plan["end_bytes"])
    most = max(least, plan["end_bytes"] + plan["expansion_bytes"])
    steps = min(num_groups, 4)
    return [None] + [round((least * (steps - i) + most * i) / steps * 1.05) for i in range(steps + 1)]


def write_ids(arguments, directory):
    vocab_size = json.loads((arguments.converted / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    generator = random.Random(1)
    path = Path(directory) / "ids.json"
    path.write_text(json.dumps([generator.randrange(3, min(vocab_size, 512)) for _ in range(arguments.prompt_tokens)]))
    return path


def main():
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory() as directory:
        run = Runner(arguments, write_ids(arguments, directory))
        groups = len(json.loads((arguments.converted / "config.json").read_text())["kvconvert"]["plan"]["groups"])
        cases = [(arguments.converted, memory) for memory in budgets_of(run(arguments.converted, None, "--plan"), groups)]
        if arguments.original:
            cases.append((arguments.original, None))
        results = [[] for _ in cases]
        for _ in range(arguments.rounds):
            for found, (model, memory) in zip(results, cases):
                found.append(run(model, memory))
        failures = 0
        print("| model | budget | forecast | peak | groups rebuilt | tokens/s |\n|---|---|---|---|---|---|")
        for (model, memory), found in zip(cases, results):
            plan = run(model, memory, "--plan")
            forecast = plan.get("peak_bytes", max(plan["reading_bytes"], plan["end_bytes"]))
            peak = found[0]["memory"]["kv_peak_bytes"]
            rate = statistics.median(one["timing"]["decode_tokens_per_second"] for one in found)
            failures += abs(peak - forecast) > 0.02 * forecast or (memory is not None and peak > memory)
            print(f"| {model.name} | {memory or 'none'} | {forecast} | {peak} | {plan.get('expanded_groups', 0)} | {rate:.2f} |")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
