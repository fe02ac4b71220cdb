#!/usr/bin/env python3
"""Scores a HuggingFace checkpoint whose prompts NVIDIA's kvpress compresses, by that package itself.

measure_kvpress.py CHECKPOINT [--presses kvzip ...] [--kept-ratio 0.5 0.25]

Runs in build/engines/kvpress, which is installed if need be (scripts/setup.sh --peers first). The setting is that of
measure_engine_caches.py: every 64 tokens of a row are scored behind all tokens before them, which were read exactly and then
pressed. kept_ratio counts the keys and values that a press keeps, as kvpress does: a press that chooses tokens per head leaves the
others in place and hides them, and a cache that stored each head apart would hold as much.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench" / "engines"))

from environments import InstallError, engine_python  # noqa: E402

if __name__ == "__main__" and importlib.util.find_spec("kvpress") is None:  # not yet the interpreter that has it
    try:
        interpreter = engine_python("kvpress", ("kvpress",), compiled=("fire",))
    except InstallError as error:
        sys.exit(f"measure_kvpress.py: error: {error}")
    os.execve(interpreter, [interpreter, *sys.argv], os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"})

import torch  # noqa: E402

from compare_methods import PRESSES  # noqa: E402
from measure_engine_caches import Scorer, Scoring, add_scoring_options  # noqa: E402


def press_of(name, removed):
    """A press that removes this share of keys and values."""
    import kvpress

    def expected_attention():
        return kvpress.ExpectedAttentionPress(compression_ratio=removed)

    return {
        "kvzip": lambda: kvpress.KVzipPress(compression_ratio=removed),
        "snapkv": lambda: kvpress.SnapKVPress(compression_ratio=removed, window_size=16),
        "keydiff": lambda: kvpress.KeyDiffPress(compression_ratio=removed),
        "tova": lambda: kvpress.TOVAPress(compression_ratio=removed),
        "expected attention": expected_attention,
        "adakv, expected attention": lambda: kvpress.AdaKVPress(expected_attention()),
        "knorm": lambda: kvpress.KnormPress(compression_ratio=removed),
        "none": lambda: contextlib.nullcontext,  # must score as the original
    }[name]()


class Pressed:
    """Prompts behind one press, and what they keep: what compare() requires of a cache."""

    def __init__(self, press):
        self.press = press
        self.kept = 0  # numbers of the last prompt, keys and values

    def num_bytes(self, _, __):
        return 2 * self.kept


class PressedScorer(Scorer):
    def through(self, cache, layers, ids, begin, end):
        past = self.new_cache()
        with torch.no_grad():
            with cache.press(self.model):
                self.model.model(input_ids=torch.tensor([ids[:begin]]), past_key_values=past)
            masked = [self.masked(index) for index in range(len(past.layers))]
            cache.kept = 2 * sum(layer.keys.numel() - numbers for layer, numbers in zip(past.layers, masked))
            # kvpress hides a masked key behind one that no query of a pass meets, which exists for few queries only.
            step = 1 if any(masked) else end - begin
            return torch.cat([self.model(input_ids=torch.tensor([ids[first:first + step]]), past_key_values=past,
                                         position_ids=torch.arange(first, first + step)[None]).logits[0]
                              for first in range(begin, end, step)])

    def masked(self, index):
        """Numbers of a layer's keys that a press left in place, but hides."""
        indices = getattr(self.model.model.layers[index].self_attn, "masked_key_indices", None)
        return 0 if indices is None else len(indices[0]) * self.shape.head_dim


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=pathlib.Path)
    parser.add_argument("--presses", nargs="+", choices=(*PRESSES, "none"), metavar="NAME", default=PRESSES,
                        help=f"one or more of: {', '.join(PRESSES)}, none (default: all but none)")
    parser.add_argument("--kept-ratio", type=float, nargs="+", default=[0.5, 0.25])
    add_scoring_options(parser)
    options = parser.parse_args()
    scoring = Scoring(PressedScorer(options.checkpoint), options)
    results = {name: {str(ratio): scoring.score(name, Pressed(press_of(name, 1 - ratio))) for ratio in options.kept_ratio}
               for name in options.presses}
    if options.json:
        print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
