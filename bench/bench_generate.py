#!/usr/bin/env python3
"""Compares kvrun's tokens per second with transformers' on one checkpoint, interleaved in one run.

bench_generate.py [MODEL] [--dtype float32 bfloat16] [--prompt-tokens 512] [--new-tokens 128] [--rounds 5] [--json FILE]

Each round runs both programs one after the other, in alternating order, on the same token ids, data type
and number of threads, after a warm-up. transformers generates greedily with scaled dot-product attention
and its dynamic cache. The table holds medians and the median of the rounds' ratios; the exit code is 1
if a ratio is below --require.
"""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, default=ROOT / "tests/data/reference-llama")
    parser.add_argument("--kvrun", type=Path, default=ROOT / "build/cpu/bin/kvrun")
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--require", type=float, default=0.0, help="smallest acceptable ratio")
    parser.add_argument("--json", type=Path, help="write all measurements here")
    return parser.parse_args()


class Peer:
    """transformers, loaded once and warm."""

    def __init__(self, model, dtype, threads, device="cpu"):
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(threads)
        self.torch = torch
        self.model = AutoModelForCausalLM.from_pretrained(
            model, dtype=getattr(torch, dtype), attn_implementation="sdpa").eval().to(device)

    def generate(self, ids, new_tokens):
        seconds, batch = self.generate_batch([ids], new_tokens)
        return seconds, batch[0]

    def generate_batch(self, batch, new_tokens):
        """Of sequences of one length: seconds, and the new tokens of each."""
        ids = self.torch.tensor(batch, device=self.model.device)
        start = time.perf_counter()
        with self.torch.inference_mode():
            out = self.model.generate(ids, attention_mask=self.torch.ones_like(ids), do_sample=False, min_new_tokens=new_tokens,
                                      max_new_tokens=new_tokens, pad_token_id=0)
        tokens = out[:, ids.shape[1]:].tolist()  # waits for a GPU
        return time.perf_counter() - start, tokens

    def measure(self, ids, new_tokens):
        prefill, first = self.generate(ids, 1)
        total, tokens = self.generate(ids, new_tokens)
        decode = max(total - prefill, 1e-9)
        return {"prefill": len(ids) / prefill, "decode": (new_tokens - 1) / decode, "tokens": tokens}


def measure_kvrun(arguments, ids_file, dtype):
    command = [arguments.kvrun, arguments.model, "--ids", ids_file, "--dtype", dtype, "--json", "--quiet", "--ignore-eos",
               "--warm-up", "--max-new-tokens", str(arguments.new_tokens), "--threads", str(arguments.threads)]
    result = json.loads(subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE).stdout)
    timing = result["timing"]
    return {"prefill": timing["prefill_tokens_per_second"], "decode": timing["decode_tokens_per_second"],
            "tokens": result["tokens"]}


def compare(arguments, dtype, ids, ids_file):
    peer = Peer(arguments.model, dtype, arguments.threads)
    peer.measure(ids, 8)
    rounds = []
    for index in range(arguments.rounds):
        runs = [("kvrun", lambda: measure_kvrun(arguments, ids_file, dtype)),
                ("transformers", lambda: peer.measure(ids, arguments.new_tokens))]
        rounds.append({name: run() for name, run in (runs if index % 2 == 0 else reversed(runs))})
    rows = {}
    for phase in ("prefill", "decode"):
        ours = [entry["kvrun"][phase] for entry in rounds]
        theirs = [entry["transformers"][phase] for entry in rounds]
        rows[phase] = {"kvrun": statistics.median(ours), "transformers": statistics.median(theirs),
                       "ratio": statistics.median(a / b for a, b in zip(ours, theirs)), "rounds": [ours, theirs]}
    equal = sum(a == b for a, b in zip(rounds[0]["kvrun"]["tokens"], rounds[0]["transformers"]["tokens"]))
    return {"dtype": dtype, "equal_tokens": equal, **rows}


def main():
    arguments = parse_arguments()
    vocabulary = json.loads((arguments.model / "config.json").read_text())["vocab_size"]
    draw = random.Random(0)
    ids = [draw.randrange(3, vocabulary) for _ in range(arguments.prompt_tokens)]
    results = []
    with tempfile.TemporaryDirectory() as directory:
        ids_file = Path(directory) / "ids.json"
        ids_file.write_text(json.dumps(ids))
        for dtype in arguments.dtype:
            results.append(compare(arguments, dtype, ids, ids_file))
    print(f"{arguments.model.name}: prompt {arguments.prompt_tokens}, {arguments.new_tokens} new tokens, "
          f"{arguments.threads} threads, {arguments.rounds} rounds; tokens/s")
    print(f"{'dtype':10} {'phase':8} {'kvrun':>10} {'transformers':>13} {'ratio':>7}")
    for result in results:
        for phase in ("prefill", "decode"):
            row = result[phase]
            print(f"{result['dtype']:10} {phase:8} {row['kvrun']:10.1f} {row['transformers']:13.1f} {row['ratio']:7.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")
    slow = [r for r in results if min(r["prefill"]["ratio"], r["decode"]["ratio"]) < arguments.require]
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
