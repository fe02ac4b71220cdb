#!/usr/bin/env python3
"""kvrun's generation beside transformers' generate(): repetition penalty, stop strings, settings of generation_config.json."""

import json
import unittest

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from conversions import DATA, directory, run

STORIES = DATA / "stories260K-hf"
PROMPTS = [[1, 403, 407, 261, 378], [1, 403], [1, 310, 411, 432, 383, 286, 261]]
TOKENS = 60


class Greedy(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = AutoModelForCausalLM.from_pretrained(STORIES, dtype=torch.float32)
        cls.tokenizer = AutoTokenizer.from_pretrained(STORIES)

    def expected(self, ids, **settings):
        output = self.model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=TOKENS, pad_token_id=0, **settings)
        return output[0, len(ids):].tolist()

    def kvrun(self, *arguments):
        path = directory / "ids.json"
        path.write_text(json.dumps(PROMPTS), encoding="ascii")
        process = run("kvrun", STORIES, "--ids", path, "--max-new-tokens", TOKENS, "--dtype", "float32", "--json", *arguments)
        return json.loads(process.stdout)

    def test_repetition_penalty(self):
        for penalty in (1.05, 1.3, 0.9):
            tokens = self.kvrun("--repetition-penalty", penalty)["tokens"]
            self.assertEqual(tokens, [self.expected(ids, repetition_penalty=penalty) for ids in PROMPTS], penalty)

    def test_stop_strings(self):
        stops = ["loved to", "big", ". O"]
        result = self.kvrun(*(word for stop in stops for word in ("--stop", stop)))
        for ids, tokens in zip(PROMPTS, result["tokens"]):
            self.assertEqual(tokens, self.expected(ids, stop_strings=stops, tokenizer=self.tokenizer))
        for text in result["text"]:
            self.assertFalse(any(stop in text for stop in stops), text)


if __name__ == "__main__":
    unittest.main()
