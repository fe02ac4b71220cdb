"""What is done with a cache of latents, checked with latents that lose nothing; and conversions that are refused."""

import copy
import unittest

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import kvconvert

from conversions import DATA, REFERENCE, convert, copy_of, edit_config, zoo
from latent_cases import EXACT, PCA, Case, kvrun, latent, load


class LosslessTest(Case):
    """Latents of full rank are keys and values: whatever is done with their cache, the original's logits follow."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        directory = latent("--method", "xkv-static", "--key-rank", "64", "--value-rank", "64", "--group", "2", "--metric", "none",
                           "--factor-dtype", "float32", "--force")
        cls.model, cls.original = load(directory), load(REFERENCE)

    def assert_exact(self, found, ids):
        expected = self.original(ids).logits[:, -found.shape[1]:]
        torch.testing.assert_close(found, expected, atol=2e-3, rtol=2e-3)

    def test_later_turns(self):
        turn, cache = self.text[:, :90], None
        for end in (90, 200, 260):
            found = self.generate(self.model, turn, 33, past_key_values=cache, return_dict_in_generate=True)
            expected = self.generate(self.original, turn, 33)
            self.assertEqual(found.sequences.tolist(), expected.tolist())
            cache, turn = found.past_key_values, torch.cat((expected, self.text[:, end:end + 40]), 1)
        self.assertGreater(min(cache.stores[0].counts), 200)

    def test_pieces_of_any_size(self):
        ids = self.text[:, :300]
        for sizes in ([1, 2, 17, 1, 1, 60, 218], [120, 1, 1, 178], [1] * 60 + [240]):
            cache = self.model.new_cache()
            found = torch.cat([self.model(piece, past_key_values=cache).logits for piece in ids.split(sizes, 1)], 1)
            self.assert_exact(found, ids)

    def test_crop_to_any_length(self):
        ids = self.text[:, :150]
        for length in (149, 140, 128, 60, 5, 4, 3, 1):
            cache = self.model.new_cache()
            self.model(ids, past_key_values=cache)
            cache.crop(length)
            self.assertEqual(cache.get_seq_length(), length)
            self.assert_exact(self.steps(self.model, cache, ids[:, length:length + 30]), ids[:, :length + 30][:, -1024:])
            cache.crop(length)
            self.assert_exact(self.model(ids[:, length:length + 3], past_key_values=cache).logits, ids[:, :length + 3])

    def test_assisted_decoding_and_prompt_lookup(self):
        ids = self.text[:, :60]
        expected = self.generate(self.original, ids).tolist()
        for options in ({"prompt_lookup_num_tokens": 3}, {"assistant_model": self.original}, {"assistant_model": self.model}):
            self.assertEqual(self.generate(self.model, ids, **options).tolist(), expected)

    def test_rows_repeat_and_are_selected(self):
        ids = self.text[:, :80]
        cache = self.model.new_cache()
        self.model(ids[:, :70], past_key_values=cache)
        cache.batch_repeat_interleave(3)
        cache.batch_select_indices(torch.tensor([2, 0]))
        self.assert_exact(self.steps(self.model, cache, ids[:, 70:].repeat(2, 1)), ids.repeat(2, 1))

    def test_rows_are_reordered(self):
        ids = torch.cat((self.text[:, :60], self.text[:, 100:160]))
        cache = self.model.new_cache()
        self.model(ids[:, :40], past_key_values=cache)
        cache.reorder_cache(torch.tensor([1, 0]))
        ids = ids.flip(0)
        self.assert_exact(self.steps(self.model, cache, ids[:, 40:]), ids)

    def test_copies_go_on_by_themselves(self):
        texts = [torch.cat((self.text[:, :70], self.text[:, first:first + 30]), 1) for first in (70, 200)]
        cache = self.model.new_cache()
        self.model(texts[0][:, :70], past_key_values=cache)
        held = cache.nbytes()
        copied = copy.deepcopy(cache)
        self.assert_exact(self.steps(self.model, copied, texts[1][:, 70:]), texts[1])
        self.assertEqual((cache.get_seq_length(), cache.nbytes(), copied.get_seq_length()), (70, held, 100))
        self.assertGreater(copied.nbytes(), held)
        copied.crop(50)
        self.assert_exact(self.steps(self.model, copied, texts[1][:, 50:]), texts[1])
        self.assert_exact(self.steps(self.model, cache, texts[0][:, 70:]), texts[0])

    def test_steps_of_padding(self):
        """A row without a token in a step goes on as if there was no step."""
        ids, cache, mask = self.text[:, :41].repeat(2, 1), self.model.new_cache(), torch.ones(2, 42, dtype=torch.long)
        mask[1, 40] = 0
        self.model(ids[:, :40], past_key_values=cache, attention_mask=mask[:, :40])
        self.model(ids[:, 40:], past_key_values=cache, attention_mask=mask[:, :41])
        found = self.model(ids[:, 40:], past_key_values=cache, attention_mask=mask).logits
        self.assert_exact(found[1:], ids[1:])

    def test_plain_layers_beside(self):
        directory = copy_of(latent(*PCA))

        def leave_plain(config):
            plan = config["kvconvert"]["plan"]
            first = plan["groups"].pop()["first_layer"]
            plan["layers"][first:] = ["plain"] * (len(plan["layers"]) - first)

        edit_config(directory, leave_plain)
        model, ids = load(directory), self.text[:, :100]
        printed, _ = kvrun(directory, ids, 40, "--dtype", "float32")
        self.assertEqual(self.generate(model, ids, 40)[0, 100:].tolist(), printed["tokens"])
        self.assertEqual(kvconvert.show(directory).served_by, ("kvrun", "transformers"))


class FamiliesTest(unittest.TestCase):
    """Windows, softcaps, biases, norms of keys, partial RoPE, layers without RoPE or with another one."""

    CASES = ("llama_yarn", "mistral_window", "ministral", "qwen2_window", "qwen3_bias_window", "gemma2", "gemma3_text",
             "gemma3_nested", "phi3_partial_window", "olmo2_gqa", "exaone4", "smollm3", "starcoder2", "qwen2_moe")
    METHODS = {"pca": ("--kept-ratio", "0.5", "--group", "2"), "commonkv": ("--merge", "none", "--group", "2", "--rank", "0.4"),
               "palu": ("--rank", "0.4")}

    def test_steps_equal_kvruns(self):
        torch.set_num_threads(1)
        torch.set_grad_enabled(False)
        for case in self.CASES:
            for method, options in self.METHODS.items():
                with self.subTest(case=case, method=method):
                    exact = () if method == "palu" else ("--sink", "2", "--window", "8", "--block", "4")
                    directory = zoo(case, *options, method=method, exact=exact)
                    if (case, method) == ("phi3_partial_window", "palu"):
                        with self.assertRaisesRegex(kvconvert.ConversionError, "factors of weights of phi3.*--method pca"):
                            load(directory)
                    elif (case, method) != ("phi3_partial_window", "commonkv"):
                        self.check(case, directory)

    def check(self, case, directory):
        golden = load_file(DATA / "zoo" / f"{case}.safetensors")
        ids = torch.cat((golden["ids.0"], golden["ids.1"]))[None].long().repeat(1, 4)[:, :60]
        model, cache = load(directory), None
        _, expected = kvrun(directory, ids, 1, "--dtype", "float32", "--prefill-tokens", 20)
        found = []
        for piece in (ids[:, :20], *ids[:, 20:].split(1, 1)):
            output = model(piece, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            found.append(output.logits)
        scale = expected.std().item()
        torch.testing.assert_close(torch.cat(found, 1) / scale, expected / scale, atol=2e-3, rtol=2e-3)
        # A shorter row in the same batch, behind padding: each sees its own window.
        short = 23
        batch, mask = ids.repeat(2, 1), torch.ones(2, 60, dtype=torch.long)
        batch[1, :short], batch[1, short:], mask[1, :short] = 1, ids[0, :60 - short], 0
        rows, long, alone = model.new_cache(), model.new_cache(), model.new_cache()
        model(batch[:, :40], past_key_values=rows, attention_mask=mask[:, :40])
        model(ids[:, :40], past_key_values=long)
        model(ids[:, :40 - short], past_key_values=alone)
        for end in range(41, 61):
            together = model(batch[:, end - 1:end], past_key_values=rows, attention_mask=mask[:, :end]).logits
            single = [model(batch[row:row + 1, end - 1:end], past_key_values=cache_of_row).logits
                      for row, cache_of_row in enumerate((long, alone))]
            torch.testing.assert_close(together / scale, torch.cat(single) / scale, atol=2e-3, rtol=2e-3)
        # Three tokens, fewer than a block, read the same latents in one pass.
        cache.crop(57)
        once = model(ids[:, 57:], past_key_values=cache).logits
        cache.crop(57)
        steps = torch.cat([model(token, past_key_values=cache).logits for token in ids[:, 57:].split(1, 1)], 1)
        torch.testing.assert_close(once / scale, steps / scale, atol=2e-3, rtol=2e-3)


class RefusalsTest(Case):
    def refused(self, directory, words):
        with self.assertRaisesRegex(kvconvert.ConversionError, words):
            load(directory)
        self.assertEqual(kvconvert.show(directory).served_by, ("kvrun",))

    def test_what_kvrun_alone_runs(self):
        merged = latent("--method", "commonkv", "--group", "2", "--rank", "0.5", "--kept-ratio", "0.7")
        self.refused(merged, r"config.json: method commonkv: kvrun alone runs merged tokens \(rule ls\); convert with --merge none; "
                             "engines run --method coded, pca, xkv-static, palu, commonkv with --merge none, .*--export folded")
        self.refused(latent("--method", "pca", "--kept-ratio", "0.3", "--kv-dtype", "int8"),
                     "config.json: method pca: kvrun alone runs latents of int8; convert without --kv-dtype")
        request = convert(REFERENCE, "--method", "xkv", "--key-rank", "16", "--value-rank", "24", exact=EXACT)
        self.refused(request, "config.json: method xkv: kvrun alone runs a basis for each prompt; convert with --method xkv-static")
        pairs = latent("--method", "minicache", "--force", exact=())
        self.refused(pairs, "config.json: method minicache: kvrun alone runs paired, plain layers; .*pca, xkv-static, palu")

    def test_blocks_of_no_tokens(self):
        directory = copy_of(latent(*PCA))
        for count in (0, None, "8", 1.5, 2**70):
            edit_config(directory, lambda config: config["kvconvert"]["plan"]["policy"].update(block_tokens=count))
            with self.assertRaisesRegex(kvconvert.ConversionError, f"policy.block_tokens is {count!r}, expected a whole number"):
                load(directory)

    def test_adapters_of_projections_that_latents_do_not_read(self):
        class Adapter(torch.nn.Module):
            def __init__(self, base):
                super().__init__()
                self.base = base

            def forward(self, hidden):
                return 2 * self.base(hidden)

        ids = torch.arange(20, 40)[None]
        for method, options in FamiliesTest.METHODS.items():
            model = load(latent("--method", method, *options, exact=() if method == "palu" else EXACT))
            attention, before = model.get_decoder().layers[5].self_attn, model(ids).logits
            attention.q_proj = Adapter(attention.q_proj)
            self.assertFalse(torch.equal(model(ids).logits, before))
            attention.v_proj = Adapter(attention.v_proj)
            if method == "pca":  # latents of the values themselves
                model(ids)
                continue
            with self.assertRaisesRegex(kvconvert.ConversionError, f"layers.5.self_attn.v_proj: Adapter stands.*method {method}.*merge the adapter"):
                model(ids)
            self.assertEqual(model(ids, use_cache=False).logits.shape, before.shape)

    def test_plan_that_leaves_a_layer_out(self):
        directory = copy_of(latent(*PCA))
        edit_config(directory, lambda config: config["kvconvert"]["plan"]["groups"].pop())
        with self.assertRaisesRegex(kvconvert.ConversionError, "config.json: kvconvert.plan.groups does not cover each latent layer"):
            load(directory)

    def test_plan_without_a_policy(self):
        directory = copy_of(latent(*PCA))
        edit_config(directory, lambda config: config["kvconvert"]["plan"].pop("policy"))
        with self.assertRaisesRegex(kvconvert.ConversionError, "config.json: kvconvert.plan: KeyError\\('policy'\\); convert again"):
            load(directory)

    def test_factor_of_another_shape(self):
        directory = copy_of(latent(*PCA))
        edit_config(directory, lambda config: config["kvconvert"]["plan"]["groups"][0].update(rank=5))
        with self.assertRaisesRegex(kvconvert.ConversionError, "model.safetensors: kvconvert.groups.0.reconstruct_proj has shape"):
            load(directory)

    def test_model_without_factors(self):
        model = AutoModelForCausalLM.from_config(load(latent("--method", "palu", "--rank", "0.5", exact=())).config)
        with self.assertRaisesRegex(kvconvert.ConversionError, "load it with from_pretrained"):
            model(self.text[:, :4], use_cache=False)


if __name__ == "__main__":
    unittest.main()
