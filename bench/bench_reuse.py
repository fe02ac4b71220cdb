#!/usr/bin/env python3
"""Compares reading a prompt with a similar one's cache (kvrun --donors) with reading all of it, interleaved in one run.

bench_reuse.py [MODEL] [--tokens 500 1000 2000 5000] [--strength 0.1 0.6] [--pairs 4] [--rounds 3] [--reuse SETTINGS] [--stretch 8] [--json FILE]

A pair is a text of the tree and its paraphrase by rule (bench/paraphrase.py), cut to the same number of tokens. The
text is read and stored first; then the paraphrase is read with and without the store, in alternating order, after a
warm-up. For every length the table has: the share of the paraphrase's tokens that the text does not have at the same
place; similarity; times to the first token and the median of the rounds' ratios; the tokens that layers computed; bytes
of the cache over the whole one; bytes of the donor; ROUGE-L of the two greedy continuations (words, or token ids
with --random), which are of --new-tokens; its floor, that of the text's own continuation; and how many of the pairs
began with the same token.

--stretch F gives a model F times its context: its RoPE is stretched by YaRN, without training, so that prompts can be
longer than those it was trained on. The table is then of that model.
"""
import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from paraphrase import paraphrase, rouge_l

ROOT = Path(__file__).resolve().parent.parent
TEXTS = ROOT / "tests/data/texts"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, default=ROOT / "tests/data/reference-llama")
    parser.add_argument("--kvrun", type=Path, default=ROOT / "build/cpu/bin/kvrun")
    parser.add_argument("--text", type=Path, default=TEXTS / "tinystories_calibration.txt")
    parser.add_argument("--tokens", type=int, nargs="+", default=[500, 1000, 2000, 5000])
    parser.add_argument("--strength", type=float, nargs="+", default=[0.1, 0.6], help="of the paraphrase, 0 to 1")
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--dtype", default="", help="empty: as stored")
    parser.add_argument("--reuse", nargs="*", default=["retention=decay", "retention=all"],
                        help="settings that are compared, beside min-tokens=1")
    parser.add_argument("--random", action="store_true", help="the model's weights are random: compare token ids")
    parser.add_argument("--stretch", type=float, default=1, help="times the model's context")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path, help="write all measurements here")
    return parser.parse_args()


def stretch(model, factor, directory):
    """`model` with `factor` times its context, in `directory`."""
    config = json.loads((model / "config.json").read_text())
    rope = config.get("rope_parameters") or {"rope_type": "default", "rope_theta": config["rope_theta"]}
    if rope["rope_type"] != "default":
        sys.exit(f"{model}: RoPE is stretched already ({rope['rope_type']}); leave out --stretch")
    original = config["max_position_embeddings"]
    config["rope_parameters"] = {"rope_type": "yarn", "rope_theta": rope["rope_theta"], "factor": factor,
                                 "original_max_position_embeddings": original}
    config["max_position_embeddings"] = int(original * factor)
    directory.mkdir()
    for file in model.iterdir():
        (directory / file.name).symlink_to(file.resolve())
    (directory / "config.json").unlink()
    (directory / "config.json").write_text(json.dumps(config))
    return directory


class Runner:
    def __init__(self, arguments, directory):
        self.arguments, self.directory, self.stored = arguments, directory, set()

    def tokenize(self, text):
        path = self.directory / "text.txt"
        path.write_text(text)
        command = [self.arguments.kvrun, self.arguments.model, "--tokenize", path]
        return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)

    def run(self, ids, new_tokens, *more, warm_up=True):
        path = self.directory / "ids.json"
        path.write_text(json.dumps(ids))
        command = [self.arguments.kvrun, self.arguments.model, "--ids", path, "--max-new-tokens", new_tokens, "--json",
                   "--quiet", "--ignore-eos", *(["--warm-up"] if warm_up else []), "--threads", self.arguments.threads, *more]
        if self.arguments.dtype:
            command += ["--dtype", self.arguments.dtype]
        return json.loads(subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE).stdout)

    def donors(self, ids):
        """A store that holds this prompt alone."""
        store = self.directory / f"donors-{abs(hash(tuple(ids)))}"
        if store not in self.stored:
            self.run(ids, 1, "--donors", store, "--reuse", "min-tokens=1", warm_up=False)
            self.stored.add(store)
        return store

    def reuse(self, ids, donor, settings):
        return self.run(ids, self.arguments.new_tokens, "--donors", self.donors(donor), "--reuse",
                        ",".join(filter(None, ["min-tokens=1,store=off", settings])))


def pairs_of(runner, text, count, num_tokens, strength):
    """(text's ids, paraphrase's ids) of `count` parts of the text."""
    step = len(text) // (count + 1)
    need = 6 * num_tokens + 2000  # characters
    for index in range(count):
        part = text[index * step:index * step + need]
        first, second = (runner.tokenize(version)[:num_tokens] for version in (part, paraphrase(part, index, strength)))
        if min(len(first), len(second)) < num_tokens:
            sys.exit(f"the text is too short for prompts of {num_tokens} tokens")
        yield first, second


def answer(arguments, result):
    return result["tokens"] if arguments.random or result["text"] is None else result["text"].lower().split()


def measure(arguments, runner, pair, settings):
    donor, target = pair
    wholes, reused = [], []
    for index in range(arguments.rounds):
        runs = [lambda: wholes.append(runner.run(target, arguments.new_tokens)),
                lambda: reused.append(runner.reuse(target, donor, settings))]
        for run in runs if index % 2 == 0 else reversed(runs):
            run()
    seconds = [[run["timing"]["first_token_seconds"] for run in side] for side in (wholes, reused)]
    last, whole = reused[-1], wholes[-1]
    report = last["kv"]["reuse"]
    layers = len(report["recomputed"])
    return {
        "changed": sum(a != b for a, b in zip(donor, target)) / len(target),
        "similarity": report["similarity"], "reused": report["donor"] is not None,
        "whole_seconds": statistics.median(seconds[0]), "reuse_seconds": statistics.median(seconds[1]),
        "speedup": statistics.median(a / b for a, b in zip(*seconds)), "find_seconds": report["seconds"],
        "computed": sum(report["recomputed"]) / layers / len(target) if layers else 1.0,
        "kept": last["kv"]["bytes"] / whole["kv"]["bytes"], "donor_bytes": report["donor_bytes"],
        "rouge": rouge_l(answer(arguments, last), answer(arguments, whole)),
        "floor": rouge_l(answer(arguments, runner.run(donor, arguments.new_tokens)), answer(arguments, whole)),
        "same_first": float(last["tokens"][:1] == whole["tokens"][:1]),
    }


def mean_of(rows):
    return {key: statistics.mean(row[key] for row in rows) for key in rows[0]}


def main():
    arguments = parse_arguments()
    text = arguments.text.read_text()
    results = []
    print(f"{arguments.model.name}, {arguments.threads} threads, {arguments.pairs} pairs, {arguments.rounds} rounds, "
          f"{arguments.new_tokens} new tokens")
    print(f"{'tokens':>6} {'strength':>8} {'settings':22} {'changed':>7} {'similar':>7} {'reused':>6} {'whole s':>8} {'reuse s':>8} {'speedup':>7} "
          f"{'computed':>8} {'kept':>6} {'donor MB':>8} {'ROUGE-L':>7} {'floor':>5} {'first':>5}")
    with tempfile.TemporaryDirectory() as directory:
        if arguments.stretch != 1:
            arguments.model = stretch(arguments.model, arguments.stretch, Path(directory) / arguments.model.name)
        runner = Runner(arguments, Path(directory))
        for num_tokens in arguments.tokens:
            for strength, settings in itertools.product(arguments.strength, arguments.reuse):
                pairs = list(pairs_of(runner, text, arguments.pairs, num_tokens, strength))
                row = mean_of([measure(arguments, runner, pair, settings) for pair in pairs])
                results.append({"tokens": num_tokens, "strength": strength, "settings": settings, **row})
                print(f"{num_tokens:6} {strength:8} {settings:22} {row['changed']:7.2f} {row['similarity']:7.3f} {row['reused']:6.2f} "
                      f"{row['whole_seconds']:8.3f} {row['reuse_seconds']:8.3f} {row['speedup']:7.2f} {row['computed']:8.3f} "
                      f"{row['kept']:6.3f} {row['donor_bytes'] / 1e6:8.2f} {row['rouge']:7.3f} {row['floor']:5.3f} {row['same_first']:5.2f}",
                      flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
