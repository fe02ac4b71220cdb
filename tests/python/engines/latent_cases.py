"""What the tests of latents in transformers share: conversions of the reference checkpoint, and what kvrun makes of them."""

import functools
import json
import pathlib
import tempfile
import unittest

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from conversions import HELD_OUT, REFERENCE, convert, run

EXACT = ("--sink", "4", "--window", "16", "--block", "8")
PCA = ("--method", "pca", "--kept-ratio", "0.3")
TILE = 32


@functools.cache
def latent(*options, exact=EXACT):
    return convert(REFERENCE, "--num-sequences", "8", "--seq-len", "256", *options, exact=exact)


def load(directory, **options):
    return AutoModelForCausalLM.from_pretrained(directory, **{"dtype": torch.float32, **options})


def kvrun(directory, ids, count, *options):
    """What kvrun prints, and its logits of the prompt."""
    with tempfile.TemporaryDirectory() as folder:
        tokens, logits = pathlib.Path(folder) / "ids.json", pathlib.Path(folder) / "logits.safetensors"
        tokens.write_text(json.dumps(ids[0].tolist()))
        printed = run("kvrun", directory, "--ids", tokens, "--max-new-tokens", count, "--ignore-eos", "--json", "--page-tokens", TILE,
                      "--logits", logits, *options)
        return json.loads(printed), next(iter(load_file(logits).values())).view(1, ids.shape[1], -1)


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)
        torch.set_grad_enabled(False)
        cls.tokenizer = AutoTokenizer.from_pretrained(REFERENCE)
        cls.tokenizer.pad_token, cls.tokenizer.padding_side = cls.tokenizer.eos_token, "left"
        cls.text = cls.tokenizer(HELD_OUT.read_text()[:4000], return_tensors="pt").input_ids

    def ids(self, text):
        return self.tokenizer(text, return_tensors="pt").input_ids

    def generate(self, model, ids, count=60, **options):
        options = {"do_sample": False, "max_new_tokens": count, "pad_token_id": 1, "eos_token_id": None, **options}
        options.setdefault("attention_mask", torch.ones_like(ids))
        return model.generate(ids, **options)

    def steps(self, model, cache, ids):
        """Logits of tokens that are read one by one."""
        return torch.cat([model(token, past_key_values=cache).logits for token in ids.split(1, 1)], 1)
