#!/usr/bin/env python3
"""Counts the tokens that attention over codes could leave out after reading a part of their keys.

measure_skipping.py CHECKPOINT [--tokens 1000] [--stretch 1] [--text FILE] [--mass 1e-4] [--shares 0.25 0.5 0.75]

A query's score is first summed over the rotary pairs with most energy in a head's keys, a share of all. What the others can
add is at most the norm of the query there times the largest norm of the keys there within the token's tile of 32 (one number
a tile). A token whose score cannot come near enough to the largest one is left out: all such tokens together weigh less than
--mass of the softmax. Prints, for each share, the tokens that could be left out, the numbers of keys that would still be read,
and the same for an oracle that knows every score beforehand. --stretch N divides positions by N, for texts N times as long as
the model's context.
"""

import argparse
import math
import pathlib

import torch

from measure_engine_caches import TEXTS

TILE = 32


class Counts:
    def __init__(self, shares):
        self.shares = shares
        self.tokens = self.oracle = 0
        self.skipped = [0] * len(shares)

    def add(self, query, keys, mass, scale):
        """query [q, d] at the last of keys' tokens or later, keys [n, d]; both post-RoPE, of one head."""
        n, half = keys.shape[0] // TILE * TILE, keys.shape[1] // 2
        keys = keys[:n]
        energy = (keys[:, :half].square() + keys[:, half:].square()).mean(0)
        order = energy.argsort(descending=True)
        exact = query @ keys.t() * scale
        largest = exact.max(1, keepdim=True).values
        reach = largest + math.log(mass / n)  # n tokens below it weigh at most `mass`
        self.tokens += exact.numel()
        self.oracle += (exact < reach).sum().item()
        for i, share in enumerate(self.shares):
            count = max(1, round(share * half))
            first, rest = (torch.cat([part, part + half]) for part in (order[:count], order[count:]))
            scores = query[:, first] @ keys[:, first].t() * scale
            norms = keys[:, rest].norm(dim=1).view(-1, TILE).max(1).values.repeat_interleave(TILE)
            bound = query[:, rest].norm(dim=1)[:, None] * norms * scale
            known = (scores - bound).max(1, keepdim=True).values  # the largest score is at least this
            self.skipped[i] += (scores + bound < known + math.log(mass / n)).sum().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=pathlib.Path)
    parser.add_argument("--text", type=pathlib.Path, default=TEXTS / "tinystories_heldout.txt")
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--stretch", type=float, default=1)
    parser.add_argument("--queries", type=int, default=64, help="last tokens whose attention is counted")
    parser.add_argument("--mass", type=float, default=1e-4)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.25, 0.5, 0.75])
    options = parser.parse_args()
    import transformers
    from tokenizers import Tokenizer

    transformers.utils.logging.disable_progress_bar()
    counts = Counts(options.shares)

    def attention(module, query, key, value, attention_mask, scaling, **unused):
        repeats = query.shape[1] // key.shape[1]
        for head in range(query.shape[1]):
            counts.add(query[0, head, -options.queries:], key[0, head // repeats, :-options.queries], options.mass, scaling)
        out = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=True)
        return out.transpose(1, 2).contiguous(), None

    transformers.AttentionInterface.register("counted", attention)
    config = transformers.AutoConfig.from_pretrained(options.checkpoint)
    if options.stretch != 1:
        config.rope_parameters = {**config.rope_parameters, "rope_type": "linear", "factor": options.stretch}
    model = transformers.AutoModelForCausalLM.from_pretrained(
        options.checkpoint, config=config, dtype=torch.float32, attn_implementation="counted").eval()
    tokenizer = Tokenizer.from_file(str(options.checkpoint / "tokenizer.json"))
    ids = tokenizer.encode(options.text.read_text(encoding="utf-8")).ids[:options.tokens]
    with torch.no_grad():
        model(torch.tensor([ids]), use_cache=False)
    print(f"{len(ids)} tokens, positions divided by {options.stretch:g}; an oracle leaves out {100 * counts.oracle / counts.tokens:.1f} %")
    for share, skipped in zip(options.shares, counts.skipped):
        left_out = skipped / counts.tokens
        print(f"share {share:g}: leaves out {100 * left_out:.1f} % of the tokens; reads {100 * (share + (1 - share) * (1 - left_out)):.1f} % "
              "of the keys")


if __name__ == "__main__":
    main()
