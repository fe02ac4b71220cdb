"""Fused layers in transformers: they store nothing, and logits and tokens are kvrun's."""

import copy
import unittest
import unittest.mock

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import kvconvert
from kvconvert.transformers.fused_cache import FusedLayer

from conversions import DATA, REFERENCE, copy_of, edit_config, tensor_place, zoo
from latent_cases import Case, kvrun, latent, load

FUSED = ("--method", "fusedkv", "--force")


class FusedTest(Case):
    OPTIONS = FUSED

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.directory = latent(*cls.OPTIONS, exact=())
        cls.model, cls.loading = load(cls.directory, output_loading_info=True)

    def test_every_tensor_is_read(self):
        self.assertFalse({kind for kind, names in self.loading.items() if names}, self.loading)

    def test_equals_kvrun(self):
        for length in (7, 100, 511):
            ids = self.text[:, :length]
            printed, logits = kvrun(self.directory, ids, 40, "--dtype", "float32")
            torch.testing.assert_close(self.model(ids).logits, logits, atol=1e-3, rtol=1e-3)
            found = self.generate(self.model, ids, 40)
            self.assertEqual(found[0, length:].tolist(), printed["tokens"], length)
        self.assertGreater((load(REFERENCE)(ids).logits - logits).abs().mean().item(), 0.02)  # what fusing costs


class ComplexTest(FusedTest):
    OPTIONS = (*FUSED, "--pair", "complex", "--sources", "search")


class HeadMapTest(FusedTest):
    OPTIONS = (*FUSED, "--head-map", "search")


class LiteTest(FusedTest):
    OPTIONS = ("--method", "fusedkv-lite", "--force")


class UseTest(Case):
    """What is done with a cache, beside a pass over the whole text."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.directory = latent(*FUSED, exact=())
        cls.model = load(cls.directory)

    def assert_whole(self, found, ids):
        expected = self.model(ids).logits[:, -found.shape[1]:]
        torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)

    def test_bytes_are_the_plans(self):
        model, ids = AutoModelForCausalLM.from_pretrained(self.directory), self.text[:, :100]
        shown = kvconvert.show(self.directory)
        cache = model(ids).past_key_values
        self.assertEqual(cache.nbytes(), 100 * shown.bytes_per_token)
        self.assertEqual((shown.kept_ratio, shown.served_by), (0.5, ("kvrun", "transformers", "vLLM")))
        self.assertEqual((shown.sink_tokens, shown.window_tokens), (0, 0))
        self.assertLess(shown.factor_bytes, 0)  # projections that no layer reads are gone

    def test_pieces_and_crop(self):
        ids = self.text[:, :150]
        cache = self.model.new_cache()
        pieces = [self.model(piece, past_key_values=cache).logits for piece in ids.split([40, 1, 23, 1, 85], 1)]
        self.assert_whole(torch.cat(pieces, 1), ids)
        cache.crop(60)
        self.assertEqual(cache.get_seq_length(), 60)
        self.assert_whole(self.steps(self.model, cache, ids[:, 60:90]), ids[:, :90])

    def test_single_tokens_are_read_in_place(self):
        ids = self.text[:, :200].view(2, 100)
        for dtype, tolerance in ((torch.float32, 1e-3), (torch.bfloat16, 0.1)):
            model = load(self.directory).to(dtype)
            caches = [model.new_cache() for _ in range(2)]
            for cache in caches:
                model(ids[:, :99], past_key_values=cache)
            with torch.enable_grad():  # which needs rows
                expected = model(ids[:, 99:], past_key_values=caches[0]).logits.detach()
            with unittest.mock.patch.object(FusedLayer, "rows", side_effect=AssertionError("rows were made")):
                found = model(ids[:, 99:], past_key_values=caches[1]).logits
            torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)

    def test_left_padded_batch_equals_single_prompts(self):
        texts = ["The dog", "Once upon a time there was a little girl who lived in a house"]
        batch = self.tokenizer(texts, return_tensors="pt", padding=True)
        found = self.generate(self.model, batch.input_ids, 30, attention_mask=batch.attention_mask)
        for row, text in enumerate(texts):
            padding = int((batch.attention_mask[row] == 0).sum())
            self.assertEqual(found[row, padding:].tolist(), self.generate(self.model, self.ids(text), 30)[0].tolist())

    def test_beams_have_the_score_of_their_text(self):
        ids = self.text[:, :40]
        found = self.generate(self.model, ids, 20, num_beams=4, num_return_sequences=4, length_penalty=0.0,
                              return_dict_in_generate=True, output_scores=True)
        self.assertGreater(len(set(map(tuple, found.sequences.tolist()))), 1)
        for score, sequence in zip(found.sequences_scores, found.sequences):
            logits = self.model(sequence[None, :-1]).logits[:, 39:]
            own = logits.log_softmax(-1).gather(-1, sequence[None, 40:, None]).sum()
            torch.testing.assert_close(score, own, atol=0.02, rtol=0)

    def test_later_turns_and_copies(self):
        found = self.generate(self.model, self.text[:, :60], 10, return_dict_in_generate=True)
        cache, turn = found.past_key_values, torch.cat((found.sequences, self.text[:, 60:90]), 1)
        copied = copy.deepcopy(cache)
        expected = self.generate(self.model, turn, 10).tolist()
        for own in (cache, copied):
            self.assertEqual(self.generate(self.model, turn, 10, past_key_values=own).tolist(), expected)

    def test_assisted_decoding(self):
        ids = self.text[:, :60]
        expected = self.generate(self.model, ids, 20).tolist()
        for options in ({"prompt_lookup_num_tokens": 3}, {"assistant_model": load(REFERENCE)}):
            self.assertEqual(self.generate(self.model, ids, 20, **options).tolist(), expected)

    def test_training_and_no_cache(self):
        ids = self.text[:, :50]
        expected = self.model(ids).logits
        for options in ({}, {"return_dict": False}):
            found = self.model(ids, use_cache=False, **options)
            torch.testing.assert_close(found[0], expected)
            self.assertEqual(len(found), 1, "no cache that the caller did not ask for")
        with torch.enable_grad():
            model = load(self.directory).train()
            logits = model(ids).logits
            torch.testing.assert_close(logits, expected, atol=1e-3, rtol=1e-3)
            logits.square().mean().backward()
        # The last layer reads what the first stored.
        self.assertGreater(model.model.layers[0].self_attn.v_proj.weight.grad.abs().max().item(), 0)


class FamiliesTest(unittest.TestCase):
    """Windows, softcaps, biases, norms of keys, partial RoPE."""

    CASES = ("llama_yarn", "mistral_window", "qwen2", "qwen3_bias_window", "gemma2", "olmo2_gqa", "starcoder2")

    def test_steps_equal_kvruns(self):
        torch.set_num_threads(1)
        torch.set_grad_enabled(False)
        for case in self.CASES:
            with self.subTest(case=case):
                directory = zoo(case, "--force", "--sources", "search", method="fusedkv", exact=())
                golden = load_file(DATA / "zoo" / f"{case}.safetensors")
                ids = torch.cat((golden["ids.0"], golden["ids.1"]))[None].long().repeat(1, 4)[:, :60]
                model = load(directory)
                _, expected = kvrun(directory, ids, 1, "--dtype", "float32")
                cache, found = model.new_cache(), []
                for piece in (ids[:, :20], *ids[:, 20:].split(1, 1)):
                    found.append(model(piece, past_key_values=cache).logits)
                scale = expected.std().item()
                torch.testing.assert_close(torch.cat(found, 1) / scale, expected / scale, atol=2e-3, rtol=2e-3)


class RefusalsTest(Case):
    def refused(self, directory, words):
        with self.assertRaisesRegex(kvconvert.ConversionError, words):
            load(directory)

    def test_matrices(self):
        directory = latent(*FUSED, "--fusion", "matrices", exact=())
        self.refused(directory, "config.json: method fusedkv: kvrun alone runs matrices, .*--fusion vectors")
        self.assertEqual(kvconvert.show(directory).served_by, ("kvrun",))

    def test_one_matrix_for_all_projections(self):
        self.refused(zoo("phi3_partial_window", "--force", method="fusedkv", exact=()),
                     "config.json: method fusedkv: kvrun alone runs fused layers of phi3")

    def test_plans_that_do_not_fit(self):
        directory = copy_of(latent(*FUSED, exact=()))
        edit_config(directory, lambda config: config["kvconvert"]["plan"]["fused"].pop())
        self.refused(directory, "config.json: kvconvert.plan.fused does not cover each fused layer once")
        directory = copy_of(latent(*FUSED, exact=()))
        edit_config(directory, lambda config: config["kvconvert"]["plan"]["fused"][0].update(key_sources=[0, 7]))
        self.refused(directory, r"config.json: kvconvert.plan.fused: layer 6 reads \[0, 7\], expected plain layers below it")

        for source in (1.5, "1", True, float("inf")):
            directory = copy_of(latent(*FUSED, exact=()))
            edit_config(directory, lambda config: config["kvconvert"]["plan"]["fused"][0]["key_sources"].__setitem__(0, source))
            self.refused(directory, f"config.json: kvconvert.plan: .*key_sources is {source!r}, expected a whole number")

    def test_head_maps_that_do_not_fit(self):
        for heads, words in (([0], "value_heads of layer . has 1 heads, expected 2"), (["x", "y"], "value_heads is 'x'"),
                             ([0, 2], "value_heads is 2"), ("xx", "value_heads is 'x'")):
            directory = copy_of(latent(*HeadMapTest.OPTIONS, exact=()))
            edit_config(directory, lambda config: config["kvconvert"]["plan"]["fused"][0].update(value_sources=[0], value_heads=heads))
            self.refused(directory, f"config.json: kvconvert.plan: .*{words}")

    def test_damaged_factors(self):
        directory = copy_of(latent(*FUSED, exact=()))
        path = directory / "model.safetensors"
        data = bytearray(path.read_bytes())
        data[tensor_place(path, "kvconvert.fused.7.key")[0]] ^= 1
        path.write_bytes(data)
        self.refused(directory, "model.safetensors: the tensors kvconvert.* are damaged: SHA-256")


if __name__ == "__main__":
    unittest.main()
