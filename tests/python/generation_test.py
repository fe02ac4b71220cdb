#!/usr/bin/env python3
"""kvrun's generation beside transformers' generate(): repetition penalty, stop strings, settings of generation_config.json."""

import json
import shutil
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

    def kvrun(self, *arguments, model=STORIES):
        path = directory / "ids.json"
        path.write_text(json.dumps(PROMPTS), encoding="ascii")
        process = run("kvrun", model, "--ids", path, "--max-new-tokens", TOKENS, "--dtype", "float32", "--json", *arguments)
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

    def test_beams(self):
        ends = [2, 426]  # the text's end, and a full stop, so that beams end at many lengths
        model = directory / "ending"
        shutil.copytree(STORIES, model)
        (model / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}), encoding="ascii")
        for beams, best in ((2, 1), (4, 4), (5, 2)):
            result = self.kvrun("--beams", beams, "--num-samples", best, model=model)
            for i, ids in enumerate(PROMPTS):
                output = self.model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=TOKENS, pad_token_id=0, num_beams=beams,
                                             num_return_sequences=best, eos_token_id=ends)[:, len(ids):].tolist()
                expected = [row[:min((row.index(end) for end in ends if end in row), default=len(row))] for row in output]
                self.assertEqual(result["tokens"][i * best:(i + 1) * best], expected, beams)


if __name__ == "__main__":
    unittest.main()
