#!/usr/bin/env python3
"""What waiting threads cost: the programs' main jobs alone and beside one busy loop, with several settings of OpenMP.

bench_contention.py [--bin build/cpu/bin] [--rounds 3] [--jobs convert prefill decode] [--settings default active passive 1000]
                    [--model DIRECTORY] [--nice -20]

A setting is `default` (what the programs arrange), `active` or `passive` (OMP_WAIT_POLICY) or a number (GOMP_SPINCOUNT).
`convert` is the quickstart's conversion of tests/data/reference-llama; `calibrate` and `fisher` are its two longest parts, on
12 and 4 sequences. `prefill` and `decode` are runs of a random model (made here unless --model names one): 1536 tokens read,
or 64 generated. A round runs every job with every setting, alone and beside the loop, in an order of its own. Prints medians
over the rounds: seconds, processor seconds, both over those of `active` alone in the same round, and how much longer the same
setting takes beside the loop. `--nice -20` (as root) keeps other work of the machine from taking part.
"""

import argparse
import json
import os
import random
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "tests" / "data" / "reference-llama"
JOBS = ("convert", "calibrate", "fisher", "prefill", "decode")
VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=ROOT / "build/cpu/bin")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=JOBS)
    parser.add_argument("--settings", nargs="+", default=("default", "active", "passive"))
    parser.add_argument("--model", type=Path)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--nice", type=int, default=0)
    return parser.parse_args()


def environment_of(setting):
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    if setting in ("active", "passive"):
        environment["OMP_WAIT_POLICY"] = setting
    elif setting != "default":
        environment["GOMP_SPINCOUNT"] = str(int(setting))
    return environment


class Jobs:
    """Each returns the seconds that it measures itself, or None: those of the whole process count."""

    def __init__(self, arguments, directory):
        self.arguments, self.directory = arguments, directory
        self.model = arguments.model or (self.random_model() if {"prefill", "decode"} & set(arguments.jobs) else None)
        generator = random.Random(1)
        self.ids = {}
        for name, tokens in (("prefill", 1536), ("decode", 16)):
            self.ids[name] = directory / f"{name}.json"
            self.ids[name].write_text(json.dumps([generator.randrange(3, 512) for _ in range(tokens)]))

    def random_model(self):
        model = self.directory / "model"
        subprocess.run([sys.executable, ROOT / "bench/make_random_checkpoint.py", model, "--layers", "12", "--hidden", "768",
                        "--intermediate", "2048", "--heads", "12", "--kv-heads", "4", "--shards", "1"], check=True,
                       stdout=subprocess.DEVNULL)
        return model

    def run(self, job, environment):
        threads = ["--threads", self.arguments.threads, "--quiet"]
        out = ["--out", self.directory / job, "--force"]
        if job == "convert":
            command = ["kvconvert", "--group", "4", "--rank", "0.7", REFERENCE, *out]
        elif job in ("calibrate", "fisher"):
            command = [f"kv{job}", REFERENCE, "--num-sequences", {"calibrate": 12, "fisher": 4}[job], *out]
        else:
            command = ["kvrun", self.model, "--ids", self.ids[job], "--max-new-tokens", 1 if job == "prefill" else 64,
                       "--ignore-eos", "--json"]
        program, *options = command
        output = subprocess.run([self.arguments.bin / program, *map(str, options + threads)], check=True, env=environment,
                                stdout=subprocess.PIPE).stdout
        return json.loads(output)["timing"][f"{job}_seconds"] if job in ("prefill", "decode") else None


class BusyLoop:
    """One process that never waits, while inside."""

    def __init__(self, wanted):
        self.wanted = wanted

    def __enter__(self):
        self.process = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if self.wanted else None
        time.sleep(0.2)

    def __exit__(self, *_):
        if self.process:
            self.process.kill()
            self.process.wait()


def processor_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measure(jobs, job, setting, beside):
    """(seconds, processor seconds of the whole process)"""
    with BusyLoop(beside):
        before, start = processor_seconds(), time.monotonic()
        own = jobs.run(job, environment_of(setting))
        return own or time.monotonic() - start, processor_seconds() - before


def print_table(job, settings, results):
    def median(setting, beside, part, base=None):
        rounds = results[job, setting, beside]
        over = results[(job, *base)] if base else [(1, 1)] * len(rounds)
        return statistics.median(a[part] / b[part] for a, b in zip(rounds, over))

    print(f"\n{job}\n\n| setting | s alone | processor s | of active | s beside | processor s | beside : alone |\n"
          "|---|---|---|---|---|---|---|")
    for setting in settings:
        active = f"{median(setting, False, 0, ('active', False)):.2f}" if "active" in settings else ""
        print(f"| {setting} | {median(setting, False, 0):.2f} | {median(setting, False, 1):.2f} | {active} | "
              f"{median(setting, True, 0):.2f} | {median(setting, True, 1):.2f} | "
              f"{median(setting, True, 0, (setting, False)):.2f} |")


def main():
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # a busy loop must not outlive this process
    if arguments.nice:
        os.setpriority(os.PRIO_PROCESS, 0, arguments.nice)
    cases = [(job, setting, beside) for job in arguments.jobs for setting in arguments.settings for beside in (False, True)]
    results = {case: [] for case in cases}
    with tempfile.TemporaryDirectory(prefix="kvc-contention-") as directory:
        jobs = Jobs(arguments, Path(directory))
        for number in range(arguments.rounds):
            for case in random.Random(number).sample(cases, len(cases)):
                results[case].append(measure(jobs, *case))
                print(f"round {number + 1}: {case[0]}, {case[1]}{', beside a loop' if case[2] else ''}: "
                      f"{results[case][-1][0]:.2f} s, {results[case][-1][1]:.2f} s of processors", file=sys.stderr, flush=True)
    for job in arguments.jobs:
        print_table(job, arguments.settings, results)


if __name__ == "__main__":
    main()
