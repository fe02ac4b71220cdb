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

from environments import InstallError, engine_python, has_engine  # noqa: E402

if __name__ == "__main__" and importlib.util.find_spec("kvpress") is None:  # not yet the interpreter that has it
    if {"-h", "--help"} & set(sys.argv[1:]) and not has_engine("kvpress", ("kvpress",)):
        print(f"{__doc__.strip()}\n\nOptions are listed once kvpress is installed, which a run does.")
        sys.exit()
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
            modules = [layer.self_attn for layer in self.model.model.layers]
            hidden = [getattr(module, "masked_key_indices", None) for module in modules]
            cache.kept = 2 * sum(layer.keys.numel() - (0 if indices is None else len(indices[0])) * self.shape.head_dim
                                 for layer, indices in zip(past.layers, hidden))
            with contextlib.ExitStack() as hooks:
                for module, indices in zip(modules, hidden):
                    if indices is not None:
                        hooks.callback(self.hide(module, indices, begin, end).remove)
                return self.model(input_ids=torch.tensor([ids[begin:end]]), past_key_values=past,
                                  position_ids=torch.arange(begin, end)[None]).logits[0]

    def hide(self, module, indices, begin, end):
        """
        Hides the keys that a press left in place from the tokens begin .. end - 1, by a mask of each head. kvpress does it by a key
        that no query of a pass meets, which exists for a few queries only and would require a pass for every token.
        """
        module.masked_key_indices = None
        _, heads, places = indices
        visible = torch.ones(self.shape.num_kv_heads, end - begin, end, dtype=torch.bool).tril(begin)
        visible[heads, :, places] = False
        visible = visible.repeat_interleave(module.num_key_value_groups, 0)[None]
        return module.register_forward_pre_hook(lambda _, args, kwargs: (args, kwargs | {"attention_mask": visible}),
                                                with_kwargs=True)


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
