"""Latents in transformers: their cache is as small as the plan says, and logits and tokens are kvrun's."""

import unittest

import torch
from transformers import AutoModelForCausalLM, DynamicCache

import kvconvert
from kvconvert.transformers import CodedCache

from conversions import REFERENCE, copy_of, tensor_place
from latent_cases import EXACT, PCA, TILE, Case, kvrun, latent, load

PROMPTS = ("Once upon a time there was a little girl", "The dog",
           "One day, Tom and his mother went to the park to play with a ball. Tom was happy.")


class PcaTest(Case):
    OPTIONS = PCA
    LATENT_SEGMENT = "merged"  # kvrun's name for where they are
    EXACT = EXACT
    SINKS, WINDOW = 4, 16
    LENGTHS = (7, 30, 31, 100, 300, 511)  # of prompts

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.directory = latent(*cls.OPTIONS, exact=cls.EXACT)
        cls.model, cls.loading = load(cls.directory, output_loading_info=True)

    def test_every_tensor_is_read(self):
        self.assertFalse({kind for kind, names in self.loading.items() if names}, self.loading)

    def test_equals_kvrun(self):
        for length in self.LENGTHS:
            ids = self.text[:, :length]
            printed, logits = kvrun(self.directory, ids, 60, "--dtype", "float32")
            torch.testing.assert_close(self.model(ids).logits, logits, atol=1e-3, rtol=1e-3)
            found = self.generate(self.model, ids, return_dict_in_generate=True)
            self.assertEqual(found.sequences[0, length:].tolist(), printed["tokens"], length)

    def test_steps_equal_kvruns(self):
        """Logits of tokens that read latents, and latents that are made while tokens are generated."""
        ids = self.text[:, :170]
        for prompt in (3, 100):
            _, expected = kvrun(self.directory, ids, 1, "--dtype", "float32", "--prefill-tokens", prompt)
            cache = self.model.new_cache()
            found = torch.cat((self.model(ids[:, :prompt], past_key_values=cache).logits,
                               self.steps(self.model, cache, ids[:, prompt:])), 1)
            torch.testing.assert_close(found, expected, atol=2e-3, rtol=2e-3)
        original = load(REFERENCE)(ids).logits
        self.assertGreater((found - original).abs().mean().item(), 0.02)  # what the latents cost

    def test_bytes_are_kvruns_and_the_plans(self):
        model = AutoModelForCausalLM.from_pretrained(self.directory)
        self.assertEqual(model.dtype, torch.bfloat16)
        count = 8 * TILE  # of tokens that become latents
        ids = self.text[:, :self.SINKS + self.WINDOW + count]
        cache = model(ids).past_key_values
        self.assertIsInstance(cache, CodedCache)
        self.assertEqual({store.latents.dtype for store in cache.stores}, {torch.bfloat16})
        found = sum(store.latents.nbytes for store in cache.stores)
        shown, (printed, _) = kvconvert.show(self.directory), kvrun(self.directory, ids, 1)
        self.assertEqual(shown.model_type, "llama")
        self.assertEqual(found, count * shown.bytes_per_token)
        self.assertEqual(found, printed["kv"]["segments"][self.LATENT_SEGMENT])
        plain = DynamicCache(config=model.config)
        AutoModelForCausalLM.from_pretrained(REFERENCE)(ids[:, :count], past_key_values=plain)
        plain_bytes = sum(layer.keys.nbytes + layer.values.nbytes for layer in plain.layers)
        self.assertEqual(plain_bytes, count * shown.plain_bytes_per_token)
        self.assertEqual(found / plain_bytes, shown.kept_ratio)
        # Sinks and window lie beside them, in whole tiles.
        exact_tiles = -(-(self.SINKS + self.WINDOW) // TILE)
        held = sum(part.nbytes for store in cache.stores for rows in store.exact for part in rows[2:])
        self.assertEqual(cache.nbytes() - found - held, exact_tiles * TILE * shown.plain_bytes_per_token)
        self.assertLess(cache.nbytes(), plain_bytes)

    def test_left_padded_batch_equals_single_prompts(self):
        texts = (*PROMPTS, " ".join(PROMPTS * 3))
        batch = self.tokenizer(list(texts), return_tensors="pt", padding=True)
        found = self.generate(self.model, batch.input_ids, attention_mask=batch.attention_mask)
        for row, text in enumerate(texts):
            ids = self.ids(text)
            padding = int((batch.attention_mask[row] == 0).sum())
            self.assertEqual(found[row, padding:].tolist(), self.generate(self.model, ids)[0].tolist())

    def test_beams_and_samples_have_the_score_of_their_text(self):
        ids = self.text[:, :40]
        for options in ({"num_beams": 4}, {"do_sample": True, "num_return_sequences": 3}):
            torch.manual_seed(5)
            options = {"num_return_sequences": 4, "length_penalty": 0.0, **options}
            found = self.generate(self.model, ids, 30, return_dict_in_generate=True, output_scores=True, output_logits=True, **options)
            self.assertGreater(len(set(map(tuple, found.sequences.tolist()))), 1)
            for row, sequence in enumerate(found.sequences):
                cache = self.model.new_cache()
                logits = torch.cat((self.model(ids, past_key_values=cache).logits[:, -1:],
                                    self.steps(self.model, cache, sequence[None, 40:-1])), 1)
                if options.get("do_sample"):
                    expected = torch.stack(found.logits, 1)[row:row + 1]
                    torch.testing.assert_close(logits, expected, atol=5e-3, rtol=5e-3)
                else:
                    score = logits.log_softmax(-1).gather(-1, sequence[None, 40:, None]).sum()
                    torch.testing.assert_close(found.sequences_scores[row], score, atol=0.02, rtol=0)

    def test_bfloat16(self):
        ids = self.text[:, :200]
        found, exact = AutoModelForCausalLM.from_pretrained(self.directory), self.model
        caches = [model.new_cache() for model in (found, exact)]
        logits = [torch.cat((model(ids[:, :150], past_key_values=cache).logits, self.steps(model, cache, ids[:, 150:])), 1).float()
                  for model, cache in zip((found, exact), caches)]
        self.assertLess((logits[0] - logits[1]).abs().mean().item(), 0.15)

    def test_model_changes_its_type(self):
        model, ids = AutoModelForCausalLM.from_pretrained(self.directory).float(), self.text[:, :100]
        cache = model.new_cache()
        found = torch.cat((model(ids[:, :80], past_key_values=cache).logits, self.steps(model, cache, ids[:, 80:])), 1)
        self.assertEqual(found.dtype, torch.float32)
        cache = self.model.new_cache()
        expected = torch.cat((self.model(ids[:, :80], past_key_values=cache).logits, self.steps(self.model, cache, ids[:, 80:])), 1)
        self.assertLess((found - expected).abs().mean().item(), 0.05)

    def test_damaged_factors(self):
        directory = copy_of(self.directory)
        path = directory / "model.safetensors"
        with open(path, "r+b") as file:
            file.seek(tensor_place(path, f"kvconvert.groups.1.{self.DAMAGED}")[0])
            byte = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte[0] ^ 1]))
        with self.assertRaisesRegex(kvconvert.ConversionError, "model.safetensors: the tensors kvconvert.* are damaged: SHA-256"):
            load(directory)

    DAMAGED = "encoder"


FEW_LENGTHS = (31, 300)  # where another class has the same store with the others


class XkvStaticTest(PcaTest):
    LENGTHS = FEW_LENGTHS
    OPTIONS = ("--method", "xkv-static", "--kept-ratio", "0.3", "--metric", "none")
    DAMAGED = "value.encoder"


class CommonKvTest(PcaTest):
    OPTIONS = ("--method", "commonkv", "--merge", "none", "--group", "2", "--rank", "0.3")
    LATENT_SEGMENT = "unmerged"
    DAMAGED = "latent_proj"


class TruncatedCommonKvTest(CommonKvTest):
    """Prompts read keys and values that are rebuilt."""

    OPTIONS = (*CommonKvTest.OPTIONS, "--prefill", "truncated")
    LENGTHS = FEW_LENGTHS
    test_damaged_factors = test_bfloat16 = None


class CommonKvWithoutExactTokensTest(CommonKvTest):
    """A generated token reads itself exactly, and is a latent from then on."""

    EXACT = ("--sink", "0", "--window", "0", "--block", "1")
    SINKS = WINDOW = 0
    LENGTHS = FEW_LENGTHS
    test_damaged_factors = test_bfloat16 = test_model_changes_its_type = None


class PcaWithoutExactTokensTest(PcaTest):
    EXACT, SINKS, WINDOW = CommonKvWithoutExactTokensTest.EXACT, 0, 0
    LENGTHS = FEW_LENGTHS
    test_damaged_factors = test_bfloat16 = test_model_changes_its_type = None


class PaluTest(PcaTest):
    OPTIONS = ("--method", "palu", "--rank", "0.5")
    LATENT_SEGMENT = "unmerged"
    EXACT = ()
    SINKS = WINDOW = 0
    DAMAGED = "key.latent_proj"

    def test_prompts_in_pieces_give_the_same_logits(self):
        ids, cache = self.text[:, :150], self.model.new_cache()
        pieces = [self.model(piece, past_key_values=cache).logits for piece in ids.split([40, 1, 23, 1, 1, 84], 1)]
        torch.testing.assert_close(torch.cat(pieces, 1), self.model(ids).logits, atol=1e-3, rtol=1e-3)

    def test_training_and_no_cache(self):
        ids = self.text[:, :50]
        expected = self.model(ids).logits
        torch.testing.assert_close(self.model(ids, use_cache=False).logits, expected, atol=1e-3, rtol=1e-3)


if __name__ == "__main__":
    unittest.main()
