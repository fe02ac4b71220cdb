#!/usr/bin/env python3
"""Times the native tokenizer against the tokenizers library, one thread each, turn by turn: 1 MB of English, as one
text and line by line, with vocabularies of 16000 tokens; and loading a tokenizer.json with 128000.

    scripts/with_peers.sh bench/bench_tokenizer.py build/cpu/tests/tokenize_lines [--rounds 5] [--keep DIRECTORY]
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "generators"))
os.environ.update(RAYON_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1")

from tokenizers import Tokenizer  # noqa: E402  (reads the environment)

import make_tokenizers  # noqa: E402
import tokenizer_cases as cases  # noqa: E402

KINDS = ("gpt2", "llama3", "qwen2", "o200k", "metaspace_always", "mistral", "llama2")
NUM_BYTES = 1_000_000


class Native:
    def __init__(self, program, directory):
        self.process = subprocess.Popen([program, directory, "times"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8")
        self.load_seconds = json.loads(self.process.stdout.readline())["load_seconds"]

    def seconds(self, texts):
        self.process.stdin.write(json.dumps({"timed": texts}) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        return answer["seconds"], answer["num_ids"]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def library_seconds(library, texts):
    start = time.perf_counter()
    num_ids = sum(len(encoding.ids) for encoding in library.encode_batch_fast(texts))
    return time.perf_counter() - start, num_ids


def english():
    text = cases.natural_text()
    return (text * (NUM_BYTES // len(text) + 1))[:NUM_BYTES]


def large_definition(base):
    """128000 tokens and about as many merges: every pair of short tokens merges."""
    tokens = sorted(token for token in base["model"]["vocab"] if len(token) <= 8)
    vocab, merges = dict(base["model"]["vocab"]), list(base["model"]["merges"])
    for left in tokens:
        for right in tokens:
            if len(vocab) >= 128_000:
                return {**base, "added_tokens": [], "post_processor": None, "model": {**base["model"], "vocab": vocab, "merges": merges}}
            if left + right not in vocab:
                vocab[left + right] = len(vocab)
                merges.append([left, right])


def prepare(directory):
    make_tokenizers.VOCAB_SIZE = 16_000
    lines = cases.natural_text().splitlines() + make_tokenizers.LANGUAGES
    families = make_tokenizers.families()
    for name in KINDS:
        made = make_tokenizers.make(families[name], lines)
        (directory / name).mkdir(parents=True)
        (directory / name / "tokenizer.json").write_text(json.dumps(made), encoding="utf-8")
    (directory / "large").mkdir()
    made = large_definition(json.loads((directory / "llama3" / "tokenizer.json").read_text(encoding="utf-8")))
    (directory / "large" / "tokenizer.json").write_text(json.dumps(made), encoding="utf-8")


def medians(times):
    return (sorted(column)[len(times) // 2] for column in zip(*times))


def compare(program, directory, kinds, rounds):
    text = english()
    print("| kind | text | native MB/s | library MB/s | ratio |\n|---|---|---|---|---|")
    for name in kinds:
        native, library = Native(program, directory / name), Tokenizer.from_file(str(directory / name / "tokenizer.json"))
        for form, texts in (("whole", [text]), ("lines", text.splitlines())):
            times = []
            for _ in range(rounds):
                ours, num_ids = native.seconds(texts)
                theirs, expected = library_seconds(library, texts)
                assert num_ids == expected, (name, form, num_ids, expected)
                times.append((ours, theirs))
            ours, theirs = medians(times)
            print(f"| {name} | {form} | {1 / ours:.1f} | {1 / theirs:.2f} | {theirs / ours:.1f} |", flush=True)
        native.close()


def load(program, directory, rounds):
    path, times = directory / "large" / "tokenizer.json", []
    for _ in range(rounds):
        native = Native(program, directory / "large")
        native.close()
        start = time.perf_counter()
        Tokenizer.from_file(str(path))
        times.append((native.load_seconds, time.perf_counter() - start))
    ours, theirs = medians(times)
    print(f"load 128000 tokens ({path.stat().st_size / 1e6:.1f} MB): native {ours:.2f} s, library {theirs:.2f} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--keep", help="where the tokenizers lie, or are made")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(options.keep or temporary)
        if not (directory / "large").exists():
            prepare(directory)
        compare(options.program, directory, options.kinds.split(","), options.rounds)
        load(options.program, directory, options.rounds)


if __name__ == "__main__":
    main()
