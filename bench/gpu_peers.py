#!/usr/bin/env python3
"""What torch reaches on this GPU: copying, products, attention of one token over long caches, and prompts read in chunks.

gpu_peers.py [--json FILE] [--seconds 40] [--device cuda]

Attention has Llama-3.1-8B's heads (32 query heads, 8 KV heads of 128 channels, bfloat16). One token of every sequence: each of
scaled_dot_product_attention's backends with grouped queries (enable_gqa), and with a KV head's queries as rows of one head, which
needs none. Prompts: 512 and 2048 queries behind a long text, under a mask, with and without deterministic algorithms, and flash
attention without a mask. Backends take turns; medians of 9 rounds after 2. What a backend refuses is said with its reason. FILE is
written anew after every group. Groups that would begin after so many seconds are left out.

--device cpu measures small shapes, which says nothing of a GPU and shows that this program works. Exit code: 77 without torch or a
GPU.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import time
import warnings

HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
WARM_UP, ROUNDS = 2, 9
SKIPPED = 77

CALLS = 8  # of a measurement on a GPU


class Peers:
    def __init__(self, torch, device, file, seconds):
        self.torch, self.device, self.file = torch, device, file
        self.end = time.monotonic() + seconds
        self.report = {"device": torch.cuda.get_device_name() if device == "cuda" else "cpu", "torch": torch.__version__,
                       "results": [], "refused": {}, "left_out": []}
        self.copy_rate = self.product_rate = 0.0

    # What is measured.

    def run(self, small):
        """small: shapes for the CPU."""
        tokens = 64 if small else 8192
        self.group("copying and products", lambda: self.ceilings(1 << (20 if small else 30), 256 if small else 8192))
        for sequences, times in ((16, 1), (1, 16), (1, 2), (1, 1), (1, 4), (16, 4)):
            self.group(f"one token of {sequences} behind {tokens * times}", lambda: self.decode(sequences, tokens * times))
            if small and times == 16:
                break
        for queries, keys in ((32, 128),) if small else ((512, 32768), (2048, 32768), (2048, 8192)):
            self.group(f"{queries} queries behind {keys}", lambda: self.prefill(queries, keys))

    def ceilings(self, count, size):
        numbers = self.random(count // 2)
        to = self.torch.empty_like(numbers)
        left, right = self.random(size, size // 2), self.random(size // 2, size)
        copying, product = f"copy of {count >> 20} MiB", f"torch bfloat16 {size} x {size} x {size // 2}"
        seconds = self.times({copying: lambda: to.copy_(numbers), product: lambda: left @ right})
        self.copy_rate = 2 * count / seconds[copying]
        self.product_rate = size**3 / seconds[product]
        self.add(copying, seconds, self.copy_rate * 1e-9, "1 GB/s")
        self.add(product, seconds, self.product_rate * 1e-12, "1 TFLOP/s")

    def decode(self, sequences, tokens):
        query = self.random(sequences, HEADS, 1, HEAD_DIM)
        key, value = (self.random(sequences, KV_HEADS, tokens, HEAD_DIM) for _ in range(2))
        rows = query.view(sequences, KV_HEADS, HEADS // KV_HEADS, HEAD_DIM)
        attend = self.torch.nn.functional.scaled_dot_product_attention
        works = {}
        for name, backend in self.backends().items():
            works[f"{name}, grouped queries"] = self.with_backend(backend, lambda: attend(query, key, value, enable_gqa=True))
            works[f"{name}, queries as rows"] = self.with_backend(backend, lambda: attend(rows, key, value))
        shape = f"({sequences}, {tokens // 1024}k)" if tokens >= 1024 else f"({sequences}, {tokens})"
        seconds = self.times({f"attention, {name} {shape}": work for name, work in works.items()})
        for name in seconds:
            self.add(name, seconds, 2 * key.numel() * key.element_size() / seconds[name] / self.copy_rate, "copy")

    def prefill(self, queries, keys):
        query = self.random(1, HEADS, queries, HEAD_DIM)
        key, value = (self.random(1, KV_HEADS, keys, HEAD_DIM) for _ in range(2))
        first = self.torch.arange(keys - queries, keys, device=self.device)
        mask = first[:, None] >= self.torch.arange(keys, device=self.device)[None]
        attend = self.torch.nn.functional.scaled_dot_product_attention
        works = {}
        for kind, deterministic in (("", False), (", deterministic", True)):
            works["mask" + kind] = self.deterministic(deterministic, lambda: attend(query, key, value, mask, enable_gqa=True))
        if self.device == "cuda":
            works["flash, causal from the end"] = lambda: self.flash(query, key, value)
        seconds = self.times({f"prompt of {queries} behind {keys}, {name}": work for name, work in works.items()})
        operations = 4 * HEADS * HEAD_DIM * queries * (keys - queries / 2)
        for name in seconds:
            self.add(name, seconds, operations / seconds[name] / self.product_rate, "torch's products")

    def flash(self, query, key, value):
        """Its causal mask ends with the last query and the last key."""
        rows = [x.transpose(1, 2) for x in (query, key, value)]
        return self.torch.ops.aten._flash_attention_forward(*rows, None, None, query.size(2), key.size(2), 0.0, True, False)

    # How.

    def random(self, *sizes):
        return self.torch.randn(sizes, device=self.device, dtype=self.torch.bfloat16)

    def backends(self):
        kinds = self.torch.nn.attention.SDPBackend
        return {"flash": kinds.FLASH_ATTENTION, "memory-efficient": kinds.EFFICIENT_ATTENTION, "cuDNN": kinds.CUDNN_ATTENTION,
                "math": kinds.MATH}

    def with_backend(self, backend, work):
        def run():
            with self.torch.nn.attention.sdpa_kernel(backend):
                return work()
        return run

    def deterministic(self, wanted, work):
        def run():
            before = self.torch.are_deterministic_algorithms_enabled()
            self.torch.use_deterministic_algorithms(wanted)
            try:
                return work()
            finally:
                self.torch.use_deterministic_algorithms(before)
        return run

    def seconds_of(self, work):
        if self.device != "cuda":
            begin = time.perf_counter()
            work()
            return time.perf_counter() - begin
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(CALLS):  # one after the other, so that the GPU waits less for Python
            work()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e-3 / CALLS

    def times(self, works):
        """Median seconds by name, of those that do not refuse."""
        samples = {}
        for name, work in works.items():
            with warnings.catch_warnings(record=True) as warned:  # a backend's reason is a warning
                warnings.simplefilter("always")
                try:
                    for _ in range(WARM_UP):
                        self.seconds_of(work)
                    samples[name] = []
                except (RuntimeError, NotImplementedError) as error:  # out of memory is a RuntimeError, too
                    reasons = [str(error) or repr(error), *(str(warning.message) for warning in warned)]
                    self.report["refused"][name] = "; ".join(reason.strip().splitlines()[0] for reason in reasons)
        for _ in range(ROUNDS):
            for name, seconds in samples.items():
                seconds.append(self.seconds_of(works[name]))
        return {name: statistics.median(seconds) for name, seconds in samples.items()}

    def add(self, name, seconds, ratio, of):
        line = {"name": name, "ms": 1e3 * seconds[name], "ratio": ratio, "of": of, "target": ""}
        self.report["results"].append(line)
        print(f"{name:60} {line['ms']:10.4f} ms {ratio:8.3f} of {of}", flush=True)

    def group(self, name, measure):
        if time.monotonic() >= self.end:
            self.report["left_out"].append(name)
        else:
            measure()
        if self.device == "cuda":
            self.torch.cuda.empty_cache()
        self.write()

    def write(self):
        if self.file is None:
            return
        partial = self.file.with_name(self.file.name + ".partial")
        partial.write_text(json.dumps(self.report, indent=2) + "\n", encoding="utf-8")
        os.replace(partial, self.file)


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    arguments = parser.parse_args()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without which deterministic products are refused
    try:
        import torch
    except ImportError as error:
        skip(f"no torch ({error})")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        skip(f"torch {torch.__version__} finds no GPU")
    torch.manual_seed(1)
    peers = Peers(torch, arguments.device, arguments.json, arguments.seconds)
    with torch.inference_mode():
        peers.run(small=arguments.device == "cpu")
    for name, reason in peers.report["refused"].items():
        print(f"{name}: refused: {reason}")
    for name in peers.report["left_out"]:
        print(f"{name}: left out, out of time")


if __name__ == "__main__":
    main()
