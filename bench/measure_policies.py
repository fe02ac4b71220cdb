#!/usr/bin/env python3
"""Quality against budget of kvrun's token policies, as tables and plots.

measure_policies.py CHECKPOINT [--bin build/cpu/bin] [--policies P ...] [--converted NAME=DIR[:KV_DTYPE] ...]
                    [--recall-tokens N ...] [--text FILE] [--results FILE.json] [--plots DIR]

Runs each policy on the checkpoint itself and on every converted one (or itself again with another type: NAME=:KV_DTYPE) against
the checkpoint with all tokens:
  KLD       kvvalidate's prefill, compress, continue, block by block: mean KL divergence, same top token, and kept_ratio of a
            cache of 16-bit numbers
  recall    20 facts and questions after other such lists with their answers, N tokens in all: the share of numbers named. What
            comes before the questions is the prompt, these are read through the cache. The bundled reference model has learned this
  ROUGE-L   words (F) of greedy continuations of prompts of the text against those of the full cache
What --results holds is not measured again.
"""

import argparse
import dataclasses
import json
import random
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from kept_results import check_settings
from policy_plots import plot_budgets, plot_compositions
from recall_facts import COLOURS, THINGS

ROOT = Path(__file__).resolve().parent.parent
POLICIES = ["full"] + [policy.format(budget, budget - 4) for budget in (256, 128, 64)
                       for policy in ("zeromerge:budget={}", "zeromerge:budget={},sink=4", "h2o:budget={}",
                                      "snapkv:budget={},window=16", "pyramidkv:budget={},window=16,beta=5",
                                      "streamingllm:window={1}")]
POLICIES += ["think:share=0.4", "think:share=0.6", "think:share=0.8"]


@dataclasses.dataclass
class Cache:
    """What policies run on: a checkpoint and what its cache stores."""
    name: str
    directory: Path
    kv_dtype: str


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--bin", type=Path, default=ROOT / "build/cpu/bin")
    parser.add_argument("--policies", nargs="+", default=POLICIES)
    parser.add_argument("--kv-dtype", default="bfloat16")
    parser.add_argument("--converted", nargs="+", default=[], metavar="NAME=DIR[:KV_DTYPE]")
    parser.add_argument("--text", type=Path, default=ROOT / "tests/data/texts/tinystories_heldout.txt")
    parser.add_argument("--num-sequences", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--block", type=int, default=64)
    parser.add_argument("--recall", type=int, default=4, help="lists of facts at each length")
    parser.add_argument("--recall-tokens", type=int, nargs="+", default=[544, 768, 1024])
    parser.add_argument("--prompts", type=int, default=8, help="of --seq-len / 2 tokens, for ROUGE-L")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--plots", type=Path,
                        help="directory of a plot (SVG) for each cache, and with --converted of one of all against their bytes")
    return parser.parse_args()


def caches_of(arguments):
    caches = [Cache("plain", arguments.checkpoint, arguments.kv_dtype)]
    for text in arguments.converted:
        name, _, place = text.partition("=")
        directory, _, kv_dtype = place.partition(":")
        caches.append(Cache(name, Path(directory or arguments.checkpoint), kv_dtype or arguments.kv_dtype))
    return caches


def output_of(*command):
    return subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE).stdout


def rouge_l(candidate, reference):
    """F measure of the longest common subsequence of two lists of tokens."""
    before = [0] * (len(reference) + 1)
    for word in candidate:
        row = [0]
        for i, other in enumerate(reference):
            row.append(before[i] + 1 if word == other else max(before[i + 1], row[i]))
        before = row
    common = before[-1]
    if common == 0:
        return 0.0
    precision, recall = common / len(candidate), common / len(reference)
    return 2 * precision * recall / (precision + recall)


class Measurement:
    def __init__(self, arguments, directory):
        self.arguments, self.directory = arguments, directory
        self.text_ids = json.loads(output_of(arguments.bin / "kvrun", arguments.checkpoint, "--tokenize", arguments.text))
        length = arguments.seq_len // 2
        self.prompts = self.write("prompts", [self.text_ids[i * length:(i + 1) * length] for i in range(arguments.prompts)])
        self.reference = self.continuations(Cache("reference", arguments.checkpoint, arguments.kv_dtype), "full")
        self.start = self.tokenize("")  # what every text begins with
        self.pieces = self.pieces_of_facts()
        self.recall_files = {length: self.write_recall(length) for length in arguments.recall_tokens}

    def write(self, name, ids):
        path = self.directory / f"{name}.json"
        path.write_text(json.dumps(ids))
        return path

    def tokenize(self, text):
        path = self.directory / "text.txt"
        path.write_text(text)
        return json.loads(output_of(self.arguments.bin / "kvrun", self.arguments.checkpoint, "--tokenize", path))

    def pieces_of_facts(self):
        """Ids of the parts of facts, so that a number's are known: a line each, told apart by the line break's id."""
        texts = [f" {colour} {thing}" for colour in COLOURS for thing in THINGS] + [f" {number}" for number in range(10, 100)]
        texts += [",", "."]
        (line_break,) = self.tokenize("\n")[len(self.start):]
        lines = [[]]
        for token in self.tokenize("\n".join(texts))[len(self.start):]:
            lines.append([]) if token == line_break else lines[-1].append(token)
        if len(lines) != len(texts):
            sys.exit("the recall task needs a tokenizer that keeps lines apart")
        return {"\n": [line_break], **{text: self.tokenize(text)[len(self.start):] for text in ("Remember:", "Recall:")}, **dict(zip(texts, lines))}

    def run(self, cache, policy, *options):
        return json.loads(output_of(
            self.arguments.bin / "kvrun", cache.directory, "--policy", policy, "--kv-dtype", cache.kv_dtype, "--json", "--quiet",
            *options))

    def continuations(self, cache, policy):
        report = self.run(cache, policy, "--ids", self.prompts, "--ignore-eos", "--max-new-tokens", self.arguments.new_tokens)
        return [text.lower().split() for text in report["text"]]

    def rouge(self, cache, policy):
        scores = [rouge_l(*pair) for pair in zip(self.continuations(cache, policy), self.reference)]
        return sum(scores) / len(scores)

    def recall_list(self, rng):
        """Facts, questions with their answers, and where in the questions these are."""
        facts = [(f" {rng.choice(COLOURS)} {thing}", f" {rng.randint(10, 99)}") for thing in rng.sample(THINGS, len(THINGS))]
        told = self.start + self.pieces["Remember:"]
        for what, number in facts:
            told = told + self.pieces[what] + self.pieces[number] + self.pieces["," if (what, number) != facts[-1] else "."]
        questions, answers = list(self.pieces["Recall:"]), []
        for what, number in rng.sample(facts, len(facts)):
            questions += self.pieces[what]
            answers.append(range(len(questions), len(questions) + len(self.pieces[number])))
            questions += self.pieces[number] + self.pieces[","]
        return told + self.pieces["\n"], questions, answers

    def write_recall(self, length):
        """A file for each list: its ids, how many are read before the questions, the questions and which of them are answers."""
        files = []
        for seed in range(self.arguments.recall):
            rng = random.Random(1000 * length + seed)
            told, questions, answers = self.recall_list(rng)
            while len(told) + len(questions) < length:
                earlier = self.recall_list(rng)
                told = (earlier[0] + earlier[1] + told)[-(length - len(questions)):]
            files.append((self.write(f"recall-{length}-{seed}", told + questions), len(told), questions, answers))
        return files

    def recall(self, cache, policy, length):
        right = asked = 0
        for path, told, questions, answers in self.recall_files[length]:
            logits = self.directory / "logits.safetensors"
            self.run(cache, policy, "--ids", path, "--prefill-tokens", told, "--logits", logits, "--max-new-tokens", 0, "--force")
            top = top_tokens(logits)
            right += sum(all(top[told + i - 1] == questions[i] for i in answer) for answer in answers)
            asked += len(answers)
            logits.unlink()
        return right / asked

    def measure(self, cache, policy):
        arguments = self.arguments
        report = json.loads(output_of(
            arguments.bin / "kvvalidate", arguments.checkpoint, cache.directory, "--text", arguments.text, "--policy", policy,
            "--kv-dtype", cache.kv_dtype, "--num-sequences", arguments.num_sequences, "--seq-len", arguments.seq_len,
            "--block", arguments.block, "--json", "--quiet"))
        continuation = report["continuation"]
        return {"kept_ratio": report["kept_ratio"],
                "kld": continuation["kl_divergence"]["mean"],
                "error": continuation["kl_divergence"]["standard_error"], "same_top": continuation["same_top"]["mean"],
                "recall": {str(length): self.recall(cache, policy, length) for length in arguments.recall_tokens},
                "rouge_l": self.rouge(cache, policy)}


def top_tokens(path):
    """Indices of the largest number in each row of the only tensor, float32, of a safetensors file."""
    data = path.read_bytes()
    (header_size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + header_size])
    rows, columns = header["logits"]["shape"]
    numbers = memoryview(data)[8 + header_size:].cast("f")
    return [max(range(columns), key=numbers[row * columns:(row + 1) * columns].__getitem__) for row in range(rows)]


def cells(row):
    recall = " / ".join(f"{value:.2f}" for value in row["recall"].values())
    return (f"{row['kept_ratio']:.3f} | {1000 * row['kld']:.3g} ± {1000 * (row['error'] or 0):.2g} | {100 * row['same_top']:.1f} % | "
            f"{recall} | {row['rouge_l']:.3f}")


def main():
    arguments = parse_arguments()
    if arguments.plots:  # they show how far the others are from it
        arguments.policies = list(dict.fromkeys(("full", *arguments.policies)))
    if arguments.results:
        check_settings(arguments.results, arguments, ("checkpoint", "kv_dtype", "text", "num_sequences", "seq_len", "block", "recall",
                                                      "recall_tokens", "prompts", "new_tokens"))
    results = json.loads(arguments.results.read_text()) if arguments.results and arguments.results.exists() else {}
    lengths = " / ".join(str(length) for length in arguments.recall_tokens)
    with tempfile.TemporaryDirectory() as directory:
        measurement = Measurement(arguments, Path(directory))
        for cache in caches_of(arguments):
            rows = results.setdefault(cache.name, {})
            print(f"\n### {cache.name}, {cache.kv_dtype}\n\n| policy | kept_ratio | KLD x 1000 | same top | recall at {lengths} | "
                  "ROUGE-L |\n|---|---|---|---|---|---|")
            for policy in arguments.policies:
                if policy not in rows:
                    rows[policy] = measurement.measure(cache, policy)
                    if arguments.results:
                        arguments.results.write_text(json.dumps(results, indent=1) + "\n")
                print(f"| {policy} | {cells(rows[policy])} |", flush=True)
            if arguments.plots:
                arguments.plots.mkdir(parents=True, exist_ok=True)
                plot_budgets(cache.name, {policy: rows[policy] for policy in arguments.policies}, arguments.recall_tokens[-1],
                             arguments.plots / f"policies-{cache.name.replace(' ', '-').replace(',', '')}.svg")
        if arguments.plots and arguments.converted:
            compared = {cache.name: {policy: results[cache.name][policy] for policy in arguments.policies}
                        for cache in caches_of(arguments)}
            plot_compositions(compared, arguments.recall_tokens[-1], arguments.plots / "policies-compositions.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
