"""generate() over a cache of codes: its modes agree with each other, and its cache has the size of the plan."""

import copy
import functools
import json
import math
import pathlib
import tempfile
import unittest

import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

import kvconvert
from kvconvert.transformers import CodedCache

from conversions import HELD_OUT, REFERENCE, copy_of, edit_config, reference, run

PROMPTS = ("Once upon a time there was a little girl", "The dog",
           "One day, Tom and his mother went to the park to play with a ball. Tom was happy.")
LENGTH = 24


def held_out_loss(model):
    """Mean over six rows of held-out text, read 64 tokens at a time."""
    tokenizer = AutoTokenizer.from_pretrained(REFERENCE)
    text = tokenizer(HELD_OUT.read_text(), return_tensors="pt", add_special_tokens=False).input_ids
    rows = torch.nn.functional.pad(text[0, : 6 * 799].view(6, 799), (1, 0), value=tokenizer.bos_token_id)
    total = 0.0
    for row in rows:
        cache, logits = None, []
        for piece in row[None].split(64, 1):
            output = model(piece, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            logits.append(output.logits)
        logits = torch.cat(logits, 1)[0, :-1]
        total += torch.nn.functional.cross_entropy(logits, row[1:]).item() / len(rows)
    return total


@functools.cache
def original_loss():
    return held_out_loss(AutoModelForCausalLM.from_pretrained(REFERENCE, dtype=torch.float32))


class GenerateTest(unittest.TestCase):
    FORM = ("--form", "rotated")
    WINDOW = 0  # tokens that stay exact, in whole tiles
    TOKENS_TOGETHER = 512  # of a prompt, in comparisons with kvrun

    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)
        torch.set_grad_enabled(False)
        directory = reference(*cls.FORM, "--window", str(cls.WINDOW))
        cls.directory = directory
        cls.model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        cls.tokenizer = AutoTokenizer.from_pretrained(directory)
        cls.tokenizer.pad_token = cls.tokenizer.eos_token
        cls.tokenizer.padding_side = "left"
        cls.text = cls.tokenizer(HELD_OUT.read_text()[:4000], return_tensors="pt").input_ids

    def ids(self, text):
        return self.tokenizer(text, return_tensors="pt").input_ids

    def generate(self, ids, **options):
        options = {"do_sample": False, "max_new_tokens": LENGTH, "pad_token_id": 1, **options}
        options.setdefault("attention_mask", torch.ones_like(ids))
        return self.model.generate(ids, **options)

    def assert_same_logits(self, found, expected):
        """Products of matrices of other sizes round otherwise, and a number at the edge of two codes may get the
        other one: a difference of one step of one coefficient, far below what the codes themselves cost."""
        self.assertEqual(found.shape, expected.shape)
        difference = (found - expected).abs()
        self.assertLess(difference.mean().item(), 0.02)
        self.assertLess(difference.max().item(), 0.5)

    def assert_greedy(self, sequences, prompt):
        """Every token is the most probable one after those before it."""
        logits = self.model(sequences[:, :-1]).logits[:, prompt - 1:]
        chosen = logits.gather(-1, sequences[:, prompt:, None])[..., 0]
        self.assertLess((logits.amax(-1) - chosen).max().item(), 0.2)

    def step_by_step(self, ids, count):
        """Greedy tokens from forward passes of one token each."""
        cache, logits = self.model.new_cache(), None
        for token in ids[0]:
            logits = self.model(token[None, None], past_key_values=cache).logits
        for _ in range(count):
            token = logits[:, -1:].argmax(-1)
            ids = torch.cat((ids, token), 1)
            logits = self.model(token, past_key_values=cache).logits
        return ids

    def test_greedy_equals_tokens_one_by_one(self):
        for prompt in PROMPTS:
            ids = self.ids(prompt)
            self.assert_greedy(self.generate(ids, eos_token_id=None), ids.shape[1])
            self.assert_greedy(self.step_by_step(ids, LENGTH), ids.shape[1])

    def test_prompts_in_pieces_give_the_same_logits(self):
        ids = torch.cat([self.ids(prompt) for prompt in PROMPTS * 3], 1)
        whole = self.model(ids).logits
        cache = self.model.new_cache()
        sizes = [40, 1, 23, 1, 1]
        pieces = ids.split([*sizes, ids.shape[1] - sum(sizes)], 1)
        found = torch.cat([self.model(piece, past_key_values=cache).logits for piece in pieces], 1)
        self.assert_same_logits(found, whole)

    def test_left_padded_batch_equals_single_prompts(self):
        batch = self.tokenizer(list(PROMPTS), return_tensors="pt", padding=True)
        self.assertIn(0, batch.attention_mask)
        found = self.generate(batch.input_ids, attention_mask=batch.attention_mask, eos_token_id=None)
        for row, prompt in enumerate(PROMPTS):
            padding = int((batch.attention_mask[row] == 0).sum())
            self.assert_greedy(found[row:row + 1, padding:], self.ids(prompt).shape[1])

    def test_padded_batch_without_position_ids(self):
        batch = self.tokenizer(list(PROMPTS), return_tensors="pt", padding=True)
        logits = self.model(batch.input_ids, attention_mask=batch.attention_mask).logits
        for row, prompt in enumerate(PROMPTS):
            alone = self.model(self.ids(prompt)).logits[0]
            self.assert_same_logits(logits[row, -len(alone):], alone)

    def test_sampling_draws_from_the_same_logits(self):
        ids = self.ids(PROMPTS[0])
        torch.manual_seed(5)
        found = self.generate(ids, do_sample=True, num_return_sequences=3, return_dict_in_generate=True,
                              output_logits=True, eos_token_id=None)
        self.assertGreater(len(set(map(tuple, found.sequences.tolist()))), 1)
        logits = self.model(found.sequences[:, :-1]).logits[:, ids.shape[1] - 1:]
        self.assert_same_logits(torch.stack(found.logits, 1), logits)

    def test_beams_have_the_score_of_their_text(self):
        ids = self.ids(PROMPTS[2])
        found = self.generate(ids, num_beams=4, num_return_sequences=4, return_dict_in_generate=True,
                              output_scores=True, eos_token_id=None, length_penalty=0.0)
        logits = self.model(found.sequences[:, :-1]).logits[:, ids.shape[1] - 1:]
        tokens = found.sequences[:, ids.shape[1]:, None]
        scores = logits.log_softmax(-1).gather(-1, tokens).sum((1, 2))
        torch.testing.assert_close(found.sequences_scores, scores, atol=0.01 * LENGTH, rtol=0)
        self.assertIsInstance(found.past_key_values, CodedCache)

    def test_assisted_decoding_equals_greedy(self):
        ids = self.ids(PROMPTS[2])
        original = AutoModelForCausalLM.from_pretrained(REFERENCE, dtype=torch.float32)
        for options in ({"prompt_lookup_num_tokens": 3}, {"assistant_model": original}, {"assistant_model": self.model}):
            self.assert_greedy(self.generate(ids, eos_token_id=None, **options), ids.shape[1])

    def test_later_turns_continue_the_cache(self):
        first = self.generate(self.ids(PROMPTS[0]), return_dict_in_generate=True, eos_token_id=None)
        turn = torch.cat((first.sequences, self.ids(PROMPTS[1])), 1)
        found = self.generate(turn, past_key_values=first.past_key_values, eos_token_id=None)
        self.assert_greedy(found, turn.shape[1])

    def test_crop_goes_back(self):
        ids = self.ids(" ".join(PROMPTS))
        cache = self.model.new_cache()
        self.model(ids, past_key_values=cache)
        expected = self.model(ids[:, -9:], past_key_values=self._cropped(ids, 9)).logits
        cache.crop(-9)
        self.assertEqual(cache.get_seq_length(), ids.shape[1] - 9)
        self.assert_same_logits(self.model(ids[:, -9:], past_key_values=cache).logits, expected)

    def test_a_crop_behind_what_is_kept_exactly_reads_codes(self):
        """Tiles whose exact rows are gone are then read from codes: far less is lost than without them."""
        ids, cache = self.text[:, :230], self.model.new_cache()
        self.model(ids, past_key_values=cache)
        cache.crop(82)
        expected = self.in_pieces(self.model, ids[:, :91], sizes=(82, 9))[:, 82:]
        difference = (self.model(ids[:, 82:91], past_key_values=cache).logits - expected).abs()
        self.assertLess(difference.mean().item(), 0.2 * (1 + self.WINDOW // 32))  # 1.8 where other tokens lie there

    @staticmethod
    def in_pieces(model, ids, sizes):
        """Logits of tokens that passes of these sizes read."""
        cache = model.new_cache()
        return torch.cat([model(piece, past_key_values=cache).logits for piece in ids.split(sizes, 1)], 1)

    def _cropped(self, ids, count):
        cache = self.model.new_cache()
        self.model(ids[:, :-count], past_key_values=cache)
        return cache

    def test_copies_go_on_by_themselves(self):
        ids, cache = self.ids(PROMPTS[2] * 3), self.model.new_cache()
        self.model(ids[:, :40], past_key_values=cache)
        copied = copy.deepcopy(cache)
        copied.crop(10)
        found = [self.model(ids[:, 40:], past_key_values=each).logits for each in (copy.deepcopy(cache), cache)]
        self.assertTrue(torch.equal(*found))

    def test_rows_repeat_and_are_selected(self):
        ids, next_token = self.ids(PROMPTS[2]), self.ids(PROMPTS[1])[:, :1]
        cache = self._cropped(ids, 1)
        expected = self.model(ids[:, -1:], past_key_values=self._cropped(ids, 1)).logits
        cache.batch_repeat_interleave(3)
        found = self.model(ids[:, -1:].repeat(3, 1), past_key_values=cache).logits
        self.assert_same_logits(found, expected.repeat(3, 1, 1))
        cache.batch_select_indices(torch.tensor([2]))
        self.assertEqual(self.model(next_token, past_key_values=cache).logits.shape[0], 1)

    def test_bytes_are_those_of_the_plan(self):
        ids = torch.randint(2, 2000, (3, 96))
        cache = self.model(ids).past_key_values
        shown = kvconvert.show(self.directory)
        # The tiles that each row reads exactly and the one before are also held so, in float32.
        open_bytes = 3 * (64 + self.WINDOW) * shown.plain_bytes_per_token * 2
        self.assertEqual(cache.nbytes() - open_bytes, 3 * 96 * shown.bytes_per_token)
        plain = DynamicCache(config=self.model.config)
        original = AutoModelForCausalLM.from_pretrained(REFERENCE)
        original(ids, past_key_values=plain)
        plain_bytes = sum(layer.keys.nbytes + layer.values.nbytes for layer in plain.layers)
        self.assertEqual(plain_bytes, 3 * 96 * shown.plain_bytes_per_token)
        kept = (0.25 * 1024 - self.WINDOW) / (1024 - self.WINDOW)  # of a token outside the window
        self.assertAlmostEqual((cache.nbytes() - open_bytes) / plain_bytes, kept, delta=0.003)
        self.model(ids[:, :1], past_key_values=cache)
        self.assertEqual(cache.nbytes() - open_bytes, 3 * 128 * shown.bytes_per_token)

    def test_pipeline(self):
        pipe = transformers.pipeline("text-generation", model=str(self.directory), dtype=torch.float32)
        text = pipe(PROMPTS[2], max_new_tokens=LENGTH, do_sample=False)[0]["generated_text"]
        ids = self.ids(PROMPTS[2])
        expected = self.tokenizer.decode(self.generate(ids)[0], skip_special_tokens=True)
        self.assertEqual(text, expected)

    def test_equals_kvrun(self):
        """The same codes: logits of a prompt up to rounding, and the tokens that follow it."""
        for length, most in ((31, 1e-3), (300, 0.01)):
            ids = self.text[:, :length]
            with tempfile.TemporaryDirectory() as folder:
                tokens, logits = pathlib.Path(folder) / "ids.json", pathlib.Path(folder) / "logits.safetensors"
                tokens.write_text(json.dumps(ids[0].tolist()))
                printed = run("kvrun", self.directory, "--ids", tokens, "--max-new-tokens", LENGTH, "--ignore-eos", "--json",
                              "--dtype", "float32", "--logits", logits)
                expected = next(iter(load_file(logits).values())).view(1, length, -1)
            cache, logits = None, []
            for piece in ids.split(self.TOKENS_TOGETHER, 1):
                output = self.model(piece, past_key_values=cache, use_cache=True)
                cache = output.past_key_values
                logits.append(output.logits)
            self.assertLess((torch.cat(logits, 1) - expected).abs().mean().item(), most)
            cache.crop(-1)
            generated = self.generate(ids, min_new_tokens=LENGTH, past_key_values=cache)[0, length:].tolist()
            self.assertEqual(generated, json.loads(printed)["tokens"])

    def test_perplexity(self):
        """Within 0.2 % of the original's."""
        exact = AutoModelForCausalLM.from_pretrained(self.directory, dtype=torch.float32, exact_step=True)
        plain = original_loss()
        coded, exact_steps = (held_out_loss(model) - plain for model in (self.model, exact))
        print(f"{self.FORM}: perplexity {math.exp(plain):.3f}, ratio with codes {math.exp(coded):.4f}, with exact steps "
              f"{math.exp(exact_steps):.4f}")
        self.assertLess(exact_steps, 0.002)
        self.assertLess(coded, 0.002)

    def test_bfloat16(self):
        model = AutoModelForCausalLM.from_pretrained(self.directory)
        self.assertEqual(model.dtype, torch.bfloat16)
        found, expected = (self.in_pieces(each, self.text[:, :100], sizes=(64, 36)).float() for each in (model, self.model))
        self.assertLess((found - expected).abs().mean().item(), 0.1)  # 0.5 and more where codes are zero


class FullGenerateTest(GenerateTest):
    FORM = ("--form", "full", "--scope", "layer")


class WindowGenerateTest(GenerateTest):
    WINDOW = 64
    test_pipeline = test_perplexity = test_bfloat16 = test_sampling_draws_from_the_same_logits = None

    def test_the_window_is_exact(self):
        """A query reads its own tile and the two before exactly, and others through codes: there it differs from the original."""
        ids = self.text[:, :160]
        original = AutoModelForCausalLM.from_pretrained(REFERENCE, dtype=torch.float32)
        found, expected = self.model(ids).logits[0], original(ids).logits[0]
        torch.testing.assert_close(found[:96], expected[:96], atol=1e-3, rtol=1e-3)
        self.assertGreater((found[96:128] - expected[96:128]).abs().max().item(), 0.05)
        self.assertIn("tokens in flight beside exact ones\nexact: the first 0 and the last 64 tokens", str(kvconvert.show(self.directory)))

    def test_windows_of_other_sizes_are_refused(self):
        directory = copy_of(self.directory)
        edit_config(directory, lambda config: config["kvconvert"]["plan"]["policy"].update(window_tokens=40))
        self.assertEqual(kvconvert.show(self.directory).served_by, ("kvrun", "transformers", "vLLM"))
        self.assertEqual(kvconvert.show(directory).served_by, ("kvrun",))
        with self.assertRaisesRegex(kvconvert.ConversionError, "last 40 tokens stay exact, and transformers keeps .* a multiple of 32"):
            AutoModelForCausalLM.from_pretrained(directory)


class GroupGenerateTest(GenerateTest):
    """Codes of a group exist after its last layer, so a step's own tokens are read exactly; kvrun reads 32 in a step."""

    TOKENS_TOGETHER = 32

    FORM = ("--form", "full", "--scope", "group", "--group", "4")

    def test_greedy_equals_tokens_one_by_one(self):
        """In one piece or many, a step reads its own tokens exactly: the first token is the original's."""
        original = AutoModelForCausalLM.from_pretrained(REFERENCE, dtype=torch.float32)
        for prompt in PROMPTS:
            ids = self.ids(prompt)
            torch.testing.assert_close(self.model(ids).logits, original(ids).logits, atol=1e-3, rtol=1e-3)

    test_prompts_in_pieces_give_the_same_logits = None
    test_sampling_draws_from_the_same_logits = None
    test_beams_have_the_score_of_their_text = None
    test_assisted_decoding_equals_greedy = None
    test_later_turns_continue_the_cache = None


class GroupWindowTest(GroupGenerateTest):
    WINDOW = 32

    test_pipeline = test_perplexity = test_bfloat16 = test_copies_go_on_by_themselves = test_rows_repeat_and_are_selected = None


if __name__ == "__main__":
    unittest.main()
