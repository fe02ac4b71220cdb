#!/usr/bin/env python3
"""Decode speed in transformers: a converted directory (codes or latents) against its original with DynamicCache, as a ratio.

serve_transformers.py ORIGINAL CONVERTED [--tokens 4096 --steps 32 --rounds 5 --threads 1]

Both models read the same random tokens and then decode one token per step. Rounds alternate between them, so that other
load on the machine meets both; the printed ratio is that of the medians. Needs the package kvconvert.
"""

import argparse
import statistics
import time

import torch
from transformers import AutoModelForCausalLM, DynamicCache

import kvconvert


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("original")
    parser.add_argument("converted")
    for name, default in (("tokens", 4096), ("steps", 32), ("rounds", 5), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


def filled_cache(model, cache, ids):
    for piece in ids.split(512, 1):
        model(piece, past_key_values=cache, logits_to_keep=1)
    return cache


def cache_bytes(cache):
    if hasattr(cache, "nbytes"):
        return cache.nbytes()
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


def seconds_per_token(model, cache, ids, steps):
    begin = time.perf_counter()
    for step in range(steps):
        model(ids[:, step:step + 1], past_key_values=cache)
    seconds = (time.perf_counter() - begin) / steps
    cache.crop(-steps)
    return seconds


@torch.no_grad()
def main():
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    models = {"original": AutoModelForCausalLM.from_pretrained(options.original),
              "converted": kvconvert.load(options.converted)}
    torch.manual_seed(0)
    ids = torch.randint(3, models["original"].config.vocab_size, (1, options.tokens))
    caches = {"original": DynamicCache(config=models["original"].config), "converted": models["converted"].new_cache()}
    for name, model in models.items():
        filled_cache(model, caches[name], ids)
    times = {name: [] for name in models}
    for _ in range(options.rounds + 1):
        for name, model in models.items():
            times[name].append(seconds_per_token(model, caches[name], ids, options.steps))
    medians = {name: statistics.median(seconds[1:]) for name, seconds in times.items()}  # the first round warms up
    for name in models:
        print(f"{name}: {1e3 * medians[name]:.2f} ms per token ({1e3 * min(times[name][1:]):.2f} to "
              f"{1e3 * max(times[name][1:]):.2f}), cache {cache_bytes(caches[name])} bytes")
    print(f"speed of the converted: {medians['original'] / medians['converted']:.2f} of the original's, bytes "
          f"{cache_bytes(caches['converted']) / cache_bytes(caches['original']):.3f}")


if __name__ == "__main__":
    main()
