#!/usr/bin/env python3
"""Scores a HuggingFace checkpoint with the caches that other engines ship (engine_caches.py), by transformers.

measure_engine_caches.py CHECKPOINT [--caches "turboquant 4bit" ...] [--text FILE ...] [--json]

The setting is that of compare_methods.py, which calls this program for these rows of its tables: every 64 tokens of a row
are scored through the cache of all tokens before them, which were prefilled exactly and then compressed. Models compute
in float32. kept_ratio counts the bytes of the caches that were read, scales included, against 16-bit ones.
"""

import argparse
import json
import math
import pathlib
import random

import torch

from engine_caches import CACHES, Shape
from kvquant import KvQuant, LayerCalibration
from recall_facts import COLOURS, THINGS

TEXTS = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "texts"
# Those of kvquant.py, by their bits.
CALIBRATED = {"kvquant nuq4": 4, "kvquant nuq3": 3}
MASK = 2**64 - 1


def mixed(seed):
    """SplitMix64."""
    seed = (seed + 0x9E3779B97F4A7C15) & MASK
    seed = ((seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    seed = ((seed ^ (seed >> 27)) * 0x94D049BB133111EB) & MASK
    return seed ^ (seed >> 31)


def rows_of(tokenizer, texts, seq_len, num_sequences, seed=0):
    """The rows that kvvalidate takes of the same files."""
    special = tokenizer.encode("").ids
    rows = []
    for text in texts:
        ids = tokenizer.encode(text.read_text(encoding="utf-8-sig"), add_special_tokens=False).ids
        length = min(seq_len - len(special), len(ids))
        rows += [special + ids[begin:begin + length] for begin in range(0, len(ids) - length + 1, length)]
    if 0 < num_sequences < len(rows):
        offset = mixed(seed) % len(rows)
        rows = [rows[(i * len(rows) + offset) // num_sequences] for i in range(num_sequences)]
    return rows


def recall_prompt(tokenizer, seed):
    """Ids, how many of them are the facts, and the places of the numbers that are asked for."""
    rng = random.Random(seed)
    facts = [(f"{rng.choice(COLOURS)} {thing}", str(rng.randint(10, 99))) for thing in rng.sample(THINGS, len(THINGS))]

    def encode(piece):
        return tokenizer.encode(piece, add_special_tokens=False).ids

    ids = tokenizer.encode("").ids + encode("Remember:")
    for i, (what, number) in enumerate(facts):
        ids += encode(f" {what}") + encode(f" {number}") + encode("," if i + 1 < len(facts) else ".")
    ids += encode("\n")
    num_facts_ids = len(ids)
    ids += encode("Recall:")
    answers = []
    for what, number in rng.sample(facts, len(facts)):
        ids += encode(f" {what}")
        answer = encode(f" {number}")
        answers.append(range(len(ids), len(ids) + len(answer)))
        ids += answer + encode(",")
    return ids, num_facts_ids, answers


def turned(keys, cosine, sine):
    low, high = keys.chunk(2, -1)
    return keys * cosine + torch.cat([-high, low], -1) * sine


class Scorer:
    """A checkpoint that reads its own keys and values through a cache of another engine."""

    def __init__(self, checkpoint):
        import transformers

        transformers.utils.logging.disable_progress_bar()
        self.new_cache = transformers.DynamicCache
        self.model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
        config = self.model.config
        self.shape = Shape(config.num_hidden_layers, config.num_key_value_heads, config.head_dim)

    def run(self, ids, layers=()):
        """Logits of `ids` behind the keys and values of `layers`, and the keys and values of all tokens."""
        cache = self.new_cache()
        for index, (keys, values) in enumerate(layers):
            cache.update(keys[None], values[None], index)
        with torch.no_grad():
            logits = self.model(torch.tensor([ids]), past_key_values=cache).logits[0]
        return logits, [(layer.keys[0], layer.values[0]) for layer in cache.layers]

    def calibration(self, rows):
        """What KvQuant requires, from the loss of `rows`."""
        held = {}

        def keep(module, _, output, name):
            output.retain_grad()
            held.setdefault(name, []).append(output)

        hooks = []
        for index, layer in enumerate(self.model.model.layers):
            attention = layer.self_attn
            for part in (getattr(attention, "k_norm", attention.k_proj), attention.v_proj):
                name = index, part is attention.v_proj
                hooks.append(part.register_forward_hook(lambda *call, name=name: keep(*call, name)))
        for row in rows:
            ids = torch.tensor([row])
            self.model(ids, labels=ids, use_cache=False).loss.backward()
            self.model.zero_grad()
        for hook in hooks:
            hook.remove()

        def joined(name, of):
            # A text's first token stays exact.
            return torch.cat([of(output).reshape(-1, self.shape.kv_dim)[1:] for output in held[name]])

        return [LayerCalibration(joined((i, False), torch.Tensor.detach), joined((i, True), torch.Tensor.detach),
                                 joined((i, False), lambda x: x.grad.square()), joined((i, True), lambda x: x.grad.square()))
                for i in range(self.shape.num_layers)]

    def stored(self, cache, layers):
        if not cache.before_rope:
            return [cache.store(keys, values, i) for i, (keys, values) in enumerate(layers)]
        positions = torch.arange(layers[0][0].shape[1])[None]
        cosine, sine = self.model.model.rotary_emb(layers[0][0], positions)
        read = [cache.store(turned(keys, cosine, -sine), values, i) for i, (keys, values) in enumerate(layers)]
        return [(turned(keys, cosine, sine), values) for keys, values in read]

    def through(self, cache, layers, ids, begin, end):
        """Logits of the tokens begin .. end - 1 of `ids` behind the exact keys and values of those before."""
        layers = [(keys[:, :begin], values[:, :begin]) for keys, values in layers]
        logits = []
        for first, last in cache.pieces(begin, end):
            piece, grown = self.run(ids[first:last], self.stored(cache, layers))
            logits.append(piece)
            layers = [(torch.cat([old_keys, keys[:, first:]], 1), torch.cat([old_values, values[:, first:]], 1))
                      for (old_keys, old_values), (keys, values) in zip(layers, grown)]
        return torch.cat(logits)


def clustered(sums, counts):
    """Mean over all positions, of which each row has as many as `counts` says, and its standard error over rows."""
    sums, counts = torch.tensor(sums, dtype=torch.float64), torch.tensor(counts, dtype=torch.float64)
    mean, rows = sums.sum() / counts.sum(), len(sums)
    apart = (sums - mean * counts) / counts.mean()
    return mean.item(), (apart.square().sum() / (rows - 1) / rows).sqrt().item() if rows > 1 else None


def compare(scorer, cache, rows, block):
    divergences, ratios, tops, positions = [], [], [], []
    kept = full = 0
    for row in rows:
        exact, layers = scorer.run(row)
        begins = range(block, len(row), block)
        # Token t is predicted by the logits behind token t - 1, the first of a block by the exact ones.
        parts = []
        for begin in begins:
            end = min(begin + block, len(row))
            parts += [exact[begin - 1:begin], scorer.through(cache, layers, row, begin, end)[:-1]]
            kept += cache.num_bytes(scorer.shape, begin)
            full += 4 * scorer.shape.num_layers * begin * scorer.shape.kv_dim
        p = exact[block - 1:-1].double().log_softmax(-1)
        q = torch.cat(parts).double().log_softmax(-1)
        targets = torch.tensor(row[block:])[:, None]
        divergences.append((p.exp() * (p - q)).sum().item())
        ratios.append((p - q).gather(1, targets).sum().item())
        tops.append((p.argmax(-1) == q.argmax(-1)).sum().item())
        positions.append(len(targets))
    kld, kld_error = clustered(divergences, positions)
    return {"kept_ratio": kept / full, "kld": kld, "kld_error": kld_error,
            "perplexity_ratio": math.exp(clustered(ratios, positions)[0]), "same_top": clustered(tops, positions)[0]}


def recall(scorer, cache, tokenizer, num_lists):
    """Shares of the numbers that the cache and the original name."""
    right = original_right = asked = 0
    for seed in range(num_lists):
        ids, num_facts_ids, answers = recall_prompt(tokenizer, seed)
        exact, layers = scorer.run(ids)
        behind = scorer.through(cache, layers, ids, num_facts_ids, len(ids))
        original, guesses = (logits.argmax(-1).tolist() for logits in (exact, torch.cat([exact[:num_facts_ids], behind])))
        for answer in answers:
            asked += 1
            right += all(guesses[i - 1] == ids[i] for i in answer)
            original_right += all(original[i - 1] == ids[i] for i in answer)
    return right / asked, original_right / asked


def add_scoring_options(parser):
    """What is scored, and how."""
    parser.add_argument("--text", type=pathlib.Path, nargs="+", default=[TEXTS / "tinystories_heldout.txt"])
    parser.add_argument("--num-sequences", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--block", type=int, default=64, help="tokens that are scored together")
    parser.add_argument("--recall", type=int, default=10, help="lists of 20 facts asked back (0: none)")
    parser.add_argument("--json", action="store_true")


class Scoring:
    """Rows and lists of facts that a checkpoint reads through one cache after the other."""

    def __init__(self, scorer, options):
        from tokenizers import Tokenizer

        self.scorer, self.options = scorer, options
        self.tokenizer = Tokenizer.from_file(str(options.checkpoint / "tokenizer.json"))
        self.rows = rows_of(self.tokenizer, options.text, options.seq_len, options.num_sequences)

    def score(self, name, cache):
        """The result, which is printed unless all results will be, as JSON."""
        result = {"settings": "", **compare(self.scorer, cache, self.rows, self.options.block), "recall": None, "original_recall": None}
        if self.options.recall:
            result["recall"], result["original_recall"] = recall(self.scorer, cache, self.tokenizer, self.options.recall)
        if not self.options.json:
            named = "-" if result["recall"] is None else f"{result['recall']:.3f}"
            print(f"{name:32} {result['kept_ratio']:.4f}  KLD x 1000 {1000 * result['kld']:9.4g} ± "
                  f"{1000 * (result['kld_error'] or 0):.2g}  perplexity ratio {result['perplexity_ratio']:.4f}  "
                  f"same top {100 * result['same_top']:.1f} %  recall {named}", flush=True)
        return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=pathlib.Path)
    parser.add_argument("--caches", nargs="+", choices=[*CACHES, *CALIBRATED], metavar="NAME",
                        default=[name for name in (*CACHES, *CALIBRATED) if not name.startswith("kvrun")],
                        help=f"one or more of: {', '.join((*CACHES, *CALIBRATED))} (default: all but kvrun's own)")
    parser.add_argument("--calibration", type=pathlib.Path, nargs="+", default=[TEXTS / "tinystories_calibration.txt"],
                        help="text that the levels of kvquant are fitted to")
    add_scoring_options(parser)
    options = parser.parse_args()
    scorer = Scorer(options.checkpoint)
    scoring = Scoring(scorer, options)

    def new_cache(name):
        if name not in CALIBRATED:
            return CACHES[name](scorer.shape)
        rows = rows_of(scoring.tokenizer, options.calibration, options.seq_len, 32)
        return KvQuant(CALIBRATED[name], scorer.calibration(rows))

    results = {name: scoring.score(name, new_cache(name)) for name in options.caches}
    if options.json:
        print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
