#!/usr/bin/env python3
"""Recall and time of the searches for donors' tokens (kvrun --donors, --reuse match=...) on paraphrased prompts.

bench_token_match.py [MODEL] [--tokens 1000 2000 5000] [--strength 0.1] [--pairs 3] [--rounds 3]

Pairs are those of bench/bench_reuse.py: a text of the tree and its paraphrase by rule, cut to the same number of
tokens. Recall is the share of tokens whose match is as near as the nearest of all pairs in float64 (ties to 1e-6).
"""
import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path

from bench_reuse import ROOT, TEXTS, Runner, mean_of, pairs_of


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, default=ROOT / "tests/data/reference-llama")
    parser.add_argument("--build", type=Path, default=ROOT / "build/cpu")
    parser.add_argument("--text", type=Path, default=TEXTS / "tinystories_calibration.txt")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1000, 2000, 5000])
    parser.add_argument("--strength", type=float, default=0.1, help="of the paraphrase, 0 to 1")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    arguments.kvrun = arguments.build / "bin/kvrun"
    text = arguments.text.read_text()
    print(f"{arguments.model.name}, {arguments.threads} threads, {arguments.pairs} pairs, {arguments.rounds} rounds")
    print("| tokens | search | recall | seconds |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        runner, path = Runner(arguments, Path(directory)), Path(directory) / "pair.json"
        for num_tokens in arguments.tokens:
            found = []
            for pair in pairs_of(runner, text, arguments.pairs, num_tokens, arguments.strength):
                path.write_text(json.dumps(pair))
                command = [arguments.build / "tests/token_match_bench", arguments.model, path, str(arguments.rounds)]
                found.append(json.loads(subprocess.run(
                    command, check=True, stdout=subprocess.PIPE,
                    env={**os.environ, "OMP_NUM_THREADS": str(arguments.threads)}).stdout))
            for search in found[0]:
                row = mean_of([result[search] for result in found])
                print(f"| {num_tokens} | {search} | {row['recall']:.4f} | {row['seconds']:.3f} |", flush=True)


if __name__ == "__main__":
    main()
