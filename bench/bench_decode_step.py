#!/usr/bin/env python3
"""How near kvrun's decode step is to reading its weights once, and its prefill to the rate of large products.

bench_decode_step.py MODEL [--weight-dtype stored int8] [--peer] [--gguf FILE...] [--rounds 5] [--json FILE]

Every round measures the streaming read bandwidth and the bfloat16 GEMM rate (tests/bench/linear_bench.cpp), kvrun with
each weight type and, with --peer, transformers, all on the same token ids and number of threads. With llama-cpp-python
installed, --gguf adds llama.cpp on converted files of the same model (bfloat16, Q8_0). "of read" is tokens/s times
the bytes a step reads (weights without an embedding that only one row is taken of, and the cache half-way through)
over the bandwidth; "of gemm" is prefill's multiplications and additions over the rate. Medians of the rounds and of
their ratios. The exit code is 1 if "of read" is below --require.

A model of a size that matters: make_random_checkpoint.py OUT --layers 24 --hidden 896 --intermediate 4864 --heads 14
--kv-heads 2 --vocab 151936 --max-position 32768 --shards 1
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
BYTES_OF = {"float32": 4, "bfloat16": 2, "float16": 2}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--kvrun", type=Path, default=ROOT / "build/cpu/bin/kvrun")
    parser.add_argument("--bench", type=Path, default=ROOT / "build/cpu/tests/model_bench")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--weight-dtype", nargs="+", default=["stored", "int8"], choices=["stored", "int8"])
    parser.add_argument("--peer", action="store_true", help="also transformers")
    parser.add_argument("--gguf", nargs="*", type=Path, default=[], help="also llama.cpp, on these files")
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--require", type=float, default=0.0, help="smallest acceptable share of the read bandwidth")
    parser.add_argument("--json", type=Path, help="write all measurements here")
    return parser.parse_args()


def measure_machine(arguments):
    """Streaming read bandwidth in bytes/s and bfloat16 products in operations/s."""
    command = [arguments.bench, "--benchmark_filter=^read|^gemm/type:1", "--benchmark_format=json",
               "--benchmark_min_time=0.3"]
    environment = dict(os.environ, OMP_NUM_THREADS=str(arguments.threads))
    output = subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                            env=environment).stdout
    read, gemm = json.loads(output)["benchmarks"]
    return {"read": read["bytes_per_second"], "gemm": gemm["items_per_second"]}


def measure_kvrun(arguments, ids_file, weight_dtype):
    command = [arguments.kvrun, arguments.model, "--ids", ids_file, "--dtype", arguments.dtype, "--json", "--quiet",
               "--ignore-eos", "--warm-up", "--max-new-tokens", arguments.new_tokens, "--threads", arguments.threads]
    if weight_dtype != "stored":
        command += ["--weight-dtype", weight_dtype]
    result = json.loads(subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE).stdout)
    timing = result["timing"]
    return {"prefill": timing["prefill_tokens_per_second"], "decode": timing["decode_tokens_per_second"],
            "tokens": result["tokens"],
            "weight_bytes": result["memory"]["weight_bytes"], "kv_bytes": result["memory"]["kv_peak_bytes"]}


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


class LlamaCpp:
    """One GGUF file, loaded once and warm."""

    def __init__(self, path, arguments):
        from llama_cpp import Llama

        self.model = Llama(str(path), n_ctx=arguments.prompt_tokens + arguments.new_tokens + 8, verbose=False,
                           n_threads=arguments.threads, n_threads_batch=arguments.threads, n_batch=512)

    def measure(self, ids, new_tokens):
        self.model.reset()
        start = time.perf_counter()
        self.model.eval(ids)
        prefill = time.perf_counter() - start
        start = time.perf_counter()
        for _ in range(new_tokens - 1):
            self.model.eval([self.model.sample(temp=0.0)])
        return {"prefill": len(ids) / prefill, "decode": (new_tokens - 1) / (time.perf_counter() - start)}


def read_per_step(arguments, config, run):
    """Bytes that one token's step reads on average."""
    unread = 0
    if not config.get("tie_word_embeddings", False):
        unread = config["vocab_size"] * config["hidden_size"] * BYTES_OF[arguments.dtype]
    halfway = (arguments.prompt_tokens + arguments.new_tokens / 2) / (arguments.prompt_tokens + arguments.new_tokens)
    return run["weight_bytes"] - unread + run["kv_bytes"] * halfway


def operations_per_token(arguments, config):
    """Multiplications and additions of a prompt's token: projections, MLP and causal attention; no head."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    q_dim, kv_dim = heads * head_dim, config["num_key_value_heads"] * head_dim
    weights = hidden * (2 * q_dim + 2 * kv_dim + 3 * config["intermediate_size"])
    return config["num_hidden_layers"] * (2 * weights + 2 * q_dim * arguments.prompt_tokens)


def measure_rounds(arguments, ids, ids_file):
    programs = {f"kvrun {kind}": lambda kind=kind: measure_kvrun(arguments, ids_file, kind)
                for kind in arguments.weight_dtype}
    if arguments.peer:
        peer = Peer(arguments.model, arguments.dtype, arguments.threads)
        peer.measure(ids, 2)
        programs["transformers"] = lambda: peer.measure(ids, arguments.new_tokens)
    for path in arguments.gguf:
        llama = LlamaCpp(path, arguments)
        llama.measure(ids, 2)
        programs[f"llama.cpp {path.stem}"] = lambda llama=llama: llama.measure(ids, arguments.new_tokens)
    rounds = []
    for index in range(arguments.rounds):
        names = list(programs) if index % 2 == 0 else list(reversed(programs))
        rounds.append({"machine": measure_machine(arguments), **{name: programs[name]() for name in names}})
    return list(programs), rounds


def row_of(arguments, config, name, rounds):
    row = {"name": name, "decode": statistics.median(entry[name]["decode"] for entry in rounds),
           "prefill": statistics.median(entry[name]["prefill"] for entry in rounds)}
    if name.startswith("kvrun"):
        row["of_read"] = statistics.median(entry[name]["decode"] * read_per_step(arguments, config, entry[name]) /
                                           entry["machine"]["read"] for entry in rounds)
        row["of_gemm"] = statistics.median(entry[name]["prefill"] * operations_per_token(arguments, config) /
                                           entry["machine"]["gemm"] for entry in rounds)
    return row


def print_table(rows, rounds):
    read = statistics.median(entry["machine"]["read"] for entry in rounds)
    gemm = statistics.median(entry["machine"]["gemm"] for entry in rounds)
    print(f"read {read / 1e9:.1f} GB/s, bfloat16 GEMM {gemm / 1e9:.0f} GFLOP/s; medians of {len(rounds)} rounds")
    print(f"{'program':24} {'decode/s':>9} {'of read':>8} {'prefill/s':>10} {'of gemm':>8}")
    for row in rows:
        shares = [f"{row[key]:8.2f}" if key in row else " " * 8 for key in ("of_read", "of_gemm")]
        print(f"{row['name']:24} {row['decode']:9.1f} {shares[0]} {row['prefill']:10.1f} {shares[1]}")
    for ours in (row["name"] for row in rows if "of_read" in row):
        for theirs in (row["name"] for row in rows if "of_read" not in row):
            for phase in ("decode", "prefill"):
                ratio = statistics.median(entry[ours][phase] / entry[theirs][phase] for entry in rounds)
                print(f"{ours} / {theirs}, {phase}: {ratio:.2f}")
            if "tokens" in rounds[0][theirs]:
                equal = sum(a == b for a, b in zip(rounds[0][ours]["tokens"], rounds[0][theirs]["tokens"]))
                print(f"{ours} and {theirs}: {equal} equal tokens")


def main():
    arguments = parse_arguments()
    config = json.loads((arguments.model / "config.json").read_text())
    draw = random.Random(0)
    ids = [draw.randrange(3, min(512, config["vocab_size"])) for _ in range(arguments.prompt_tokens)]
    with tempfile.TemporaryDirectory() as directory:
        ids_file = Path(directory) / "ids.json"
        ids_file.write_text(json.dumps(ids))
        names, rounds = measure_rounds(arguments, ids, ids_file)
    rows = [row_of(arguments, config, name, rounds) for name in names]
    print_table(rows, rounds)
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows, "rounds": rounds}, indent=2) + "\n")
    return 1 if any(row.get("of_read", 1) < arguments.require for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
