"""How forward passes may run: in inference mode, under autocast, in threads, for gradients, and after an interrupted one."""

import copy
import functools
import gc
import threading
import unittest
import unittest.mock
import weakref

import torch

import kvconvert
from kvconvert.codes import LayerCodes
from kvconvert.transformers.cache import CodedLayer
from kvconvert.transformers.model_latents import ModelLatents

from conversions import reference, zoo
from latent_cases import PCA, Case, latent, load

CONVERSIONS = {
    "codes": lambda: reference("--form", "rotated", "--window", "0"),
    "group": lambda: reference("--form", "full", "--scope", "group", "--group", "4", "--window", "0"),
    "pca": lambda: latent(*PCA),
    "palu": lambda: latent("--method", "palu", "--rank", "0.5", exact=()),
    "commonkv": lambda: latent("--method", "commonkv", "--merge", "none", "--group", "2", "--rank", "0.3"),
    "fused": lambda: latent("--method", "fusedkv", "--force", exact=()),
}


@functools.cache
def model_of(name):
    return load(CONVERSIONS[name]())


class Interrupted(Exception):
    pass


class PassesTest(Case):
    def continued(self, model, ids, prompt=60):
        """Logits of a prompt's last token and of the tokens behind it, one by one."""
        cache = model.new_cache()
        return torch.cat((model(ids[:, :prompt], past_key_values=cache).logits[:, -1:], self.steps(model, cache, ids[:, prompt:])), 1)

    def test_a_cache_outlives_inference_mode(self):
        for name in CONVERSIONS:
            with self.subTest(name):
                model, ids, cache = model_of(name), self.text[:, :100], model_of(name).new_cache()
                with torch.inference_mode():
                    first = model(ids[:, :60], past_key_values=cache).logits[:, -1:]
                    first = torch.cat((first, self.steps(model, cache, ids[:, 60:66])), 1)
                with torch.no_grad():
                    found = torch.cat((first, self.steps(model, cache, ids[:, 66:])), 1)
                torch.testing.assert_close(found.clone(), self.continued(model, ids), atol=1e-4, rtol=1e-4)

    def test_autocast(self):
        for name in ("codes", "pca", "palu", "commonkv"):
            with self.subTest(name):
                model, ids = model_of(name), self.text[:, :80]
                with torch.autocast("cpu", torch.bfloat16):
                    found = self.continued(model, ids)
                self.assertLess((found.float() - self.continued(model, ids)).abs().mean().item(), 0.15)

    def test_a_model_that_changes_its_type(self):
        for name in ("codes", "pca", "palu", "commonkv"):
            with self.subTest(name):
                model, ids = load(CONVERSIONS[name]()), self.text[:, :80]
                expected = self.continued(model, ids)
                cache = model.new_cache()
                model(ids[:, :60], past_key_values=cache)
                model.to(torch.bfloat16)
                self.assertLess((self.steps(model, cache, ids[:, 60:]).float() - expected[:, 1:]).abs().mean().item(), 0.15)

    def test_threads_with_a_cache_each(self):
        texts = [self.text[:, first:first + 70] for first in (0, 300, 600)]
        for name in ("codes", "pca", "palu", "commonkv"):
            with self.subTest(name):
                model, found = model_of(name), [None] * len(texts)
                expected = [self.continued(model, ids) for ids in texts]

                def run(place, ids):
                    with torch.no_grad():
                        found[place] = [self.continued(model, ids) for _ in range(3)]

                threads = [threading.Thread(target=run, args=pair) for pair in enumerate(texts)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                for runs, wanted in zip(found, expected):
                    for one in runs:
                        torch.testing.assert_close(one, wanted, atol=1e-4, rtol=1e-4)

    def test_gradients_are_refused_rather_than_wrong(self):
        for name in ("codes", "group", "pca", "palu"):
            with self.subTest(name):
                model, ids = model_of(name), self.text[:, :40]
                with torch.enable_grad():
                    inputs = model.get_input_embeddings()(ids).detach().requires_grad_()
                    logits = model(inputs_embeds=inputs).logits
                    with self.assertRaisesRegex(kvconvert.ConversionError, "attention over a cache has no gradients; leave past_key_values out.*use_cache=False"):
                        logits[0, -1].sum().backward()
                    model(inputs_embeds=inputs, use_cache=False).logits[0, -1].sum().backward()
                self.assertGreater(inputs.grad[0, 0].abs().max().item(), 0)

    def test_checkpointing_of_fused_layers_is_refused(self):
        model, ids = load(CONVERSIONS["fused"]()), self.text[:, :20]
        model.train()
        with torch.enable_grad():
            expected = model(ids, labels=ids).loss
            model.gradient_checkpointing_enable()
            with self.assertRaisesRegex(kvconvert.ConversionError, r"gradient_checkpointing_disable\(\)"):
                model(ids, labels=ids)
            model.gradient_checkpointing_disable()
            torch.testing.assert_close(model(ids, labels=ids).loss, expected)

    def padded(self, lengths, columns):
        """Texts of these lengths, padded on the left: ids and mask."""
        ids, mask = torch.zeros(len(lengths), columns, dtype=torch.long), torch.zeros(len(lengths), columns, dtype=torch.long)
        for row, length in enumerate(lengths):
            ids[row, columns - length:], mask[row, columns - length:] = self.text[0, 200 * row:200 * row + length], 1
        return ids, mask

    def in_passes(self, model, cache, ids, mask):
        """Logits of tokens that are read five at a time behind the columns of a mask."""
        found = []
        for piece in ids.split(5, 1):
            mask = torch.cat((mask, torch.ones_like(piece)), 1)
            found.append(model(piece, attention_mask=mask, past_key_values=cache).logits)
        return torch.cat(found, 1)

    def test_short_rows_go_on_without_the_longest(self):
        rest = self.text[:, 700:740]
        for name in CONVERSIONS:
            with self.subTest(name):
                model, (ids, mask), cache = model_of(name), self.padded([100, 20, 25], 100), model_of(name).new_cache()
                model(ids, attention_mask=mask, past_key_values=cache)
                cache.batch_select_indices(torch.tensor([1, 2]))
                found = self.in_passes(model, cache, rest.expand(2, -1), mask[1:])
                for row, length in ((0, 20), (1, 25)):
                    prompt, alone = ids[row + 1:row + 2, -length:], model.new_cache()
                    model(prompt, past_key_values=alone)
                    expected = self.in_passes(model, alone, rest, torch.ones_like(prompt))
                    torch.testing.assert_close(found[row:row + 1], expected, atol=2e-3, rtol=2e-3)

    def test_a_first_pass_of_padding_alone(self):
        rest = self.text[:, 700:720]
        for name in CONVERSIONS:
            with self.subTest(name):
                model, (ids, mask), cache = model_of(name), self.padded([60, 25], 100), model_of(name).new_cache()
                for begin, end in ((0, 32), (32, 33), (33, 80), (80, 100)):
                    model(ids[:, begin:end], attention_mask=mask[:, :end], past_key_values=cache)
                without = model.new_cache()
                for begin, end in ((33, 80), (80, 100)):
                    model(ids[:, begin:end], attention_mask=mask[:, 33:end], past_key_values=without)
                found, expected = (self.in_passes(model, each, rest.expand(2, -1), seen)
                                   for each, seen in ((cache, mask), (without, mask[:, 33:])))
                torch.testing.assert_close(found, expected, atol=2e-3, rtol=2e-3)

    def test_padding_between_the_tokens_of_a_pass(self):
        ids, mask = self.text[:, :70], torch.ones(1, 120, dtype=torch.long)
        mask[0, 20:70] = 0
        spread = torch.zeros_like(mask)
        spread[mask == 1] = ids[0]
        for name in CONVERSIONS:
            with self.subTest(name):
                model, cache, expected = model_of(name), model_of(name).new_cache(), model_of(name).new_cache()
                with unittest.mock.patch.object(LayerCodes, "store", autospec=True, side_effect=LayerCodes.store) as store:
                    found = model(spread, attention_mask=mask, past_key_values=cache).logits[mask == 1]
                self.assertEqual(store.called, name in ("codes", "group"))
                for call in store.call_args_list:  # a tile's tokens are neighbours
                    self.assertEqual(call.args[2].tolist(), list(range(70)))
                torch.testing.assert_close(found, model(ids, past_key_values=expected).logits[0], atol=2e-3, rtol=2e-3)
                behind = self.in_passes(model, cache, ids[:, :5], mask)
                torch.testing.assert_close(behind, self.in_passes(model, expected, ids[:, :5], torch.ones_like(ids)), atol=2e-3, rtol=2e-3)

    def test_caches_are_freed_with_their_last_reference(self):
        gc.disable()
        self.addCleanup(gc.enable)
        for name in CONVERSIONS:
            with self.subTest(name):
                model, ids = model_of(name), self.text[:, :40]
                for make in (lambda: model(ids).past_key_values, lambda: copy.deepcopy(model(ids).past_key_values),
                             lambda: self.generate(model, ids, 3, return_dict_in_generate=True).past_key_values):
                    self.assertIsNone(weakref.ref(make())())

    def test_models_are_freed_with_their_last_reference(self):
        gc.disable()
        self.addCleanup(gc.enable)
        for name in ("codes", "commonkv", "palu", "fused"):
            with self.subTest(name):
                model = load(CONVERSIONS[name]())
                weights = weakref.ref(model.get_decoder())
                model(self.text[:, :40])
                del model
                self.assertIsNone(weights())

    def test_the_decoder_runs_alone(self):
        for name in CONVERSIONS:
            with self.subTest(name):
                decoder, ids = load(CONVERSIONS[name]()).get_decoder(), self.text[:, :40]
                torch.testing.assert_close(decoder(ids).last_hidden_state, model_of(name).get_decoder()(ids).last_hidden_state)

    def test_a_pass_that_fails_before_its_first_layer_brings_no_tokens(self):
        ids, outside = self.text[:, :70], torch.full((1, 10), 10**6)
        for name in CONVERSIONS:
            for after in (lambda cache: None, lambda cache: cache.crop(60), lambda cache: cache.batch_select_indices(torch.tensor([0]))):
                with self.subTest(name):
                    model, cache = model_of(name), model_of(name).new_cache()
                    model(ids[:, :60], past_key_values=cache)
                    with self.assertRaises(IndexError):
                        model(outside, past_key_values=cache)
                    after(cache)
                    expected = model.new_cache()
                    model(ids[:, :60], past_key_values=expected)
                    torch.testing.assert_close(model(ids[:, 60:], past_key_values=cache).logits,
                                               model(ids[:, 60:], past_key_values=expected).logits, atol=1e-4, rtol=1e-4)

    def test_a_later_call_needs_no_mask(self):
        token = self.text[:, 700:701].expand(2, 1)
        for name in CONVERSIONS:
            with self.subTest(name):
                model, (ids, mask), found = model_of(name), self.padded([40, 20], 40), []
                for later in ({}, {"attention_mask": torch.cat((mask, torch.ones_like(token)), 1)}):
                    cache = model.new_cache()
                    model(ids, attention_mask=mask, past_key_values=cache)
                    found.append(model(token, past_key_values=cache, **later).logits)
                torch.testing.assert_close(*found, atol=1e-4, rtol=1e-4)

    def test_what_a_pass_cannot_go_on_with(self):
        model, ids = model_of("codes"), self.text[:, :20]
        with self.assertRaisesRegex(kvconvert.ConversionError, r"position_ids: \(1, 3\), expected \(1, 20\)"):
            model(ids, position_ids=torch.arange(3)[None])
        cache = model(ids).past_key_values
        cache.batch_select_indices(torch.tensor([], dtype=torch.long))
        with self.assertRaisesRegex(kvconvert.ConversionError, "holds 0 sequences, this call has 1"):
            model(ids, past_key_values=cache)

    def test_drafts_of_the_first_layers_need_whole_stores(self):
        for name, layer, is_whole in (("pca", 2, False), ("codes", 2, True), ("palu", 2, True)):
            with self.subTest(name):
                model, ids = model_of(name), self.text[:, :30]
                expected = self.generate(model, ids, 6)
                if is_whole:
                    self.assertEqual(self.generate(model, ids, 6, assistant_early_exit=layer).tolist(), expected.tolist())
                else:
                    with self.assertRaisesRegex(kvconvert.ConversionError, "assistant_early_exit 2: layers 0-3 are stored together"):
                        self.generate(model, ids, 6, assistant_early_exit=layer)
                    self.assertEqual(self.generate(model, ids, 6).tolist(), expected.tolist())

    def test_a_change_of_type_leaves_positions_exact(self):
        for name in CONVERSIONS:
            with self.subTest(name):
                ids = self.text[:, :500]
                changed = load(CONVERSIONS[name]()).to(torch.bfloat16)
                torch.testing.assert_close(self.continued(changed, ids, 490), self.continued(load(CONVERSIONS[name](), dtype=torch.bfloat16), ids, 490))

    def test_latents_of_a_quantised_model_have_its_other_weights_type(self):
        for name in ("pca", "commonkv"):
            model = load(CONVERSIONS[name]())
            projection, checkpoint = model.coded.attention(0).q_proj, model.coded.checkpoint
            projection.weight = torch.nn.Parameter(projection.weight.to(torch.uint8), requires_grad=False)
            for found, expected in zip(ModelLatents(model.get_decoder(), checkpoint).latents, model.coded.latents):
                torch.testing.assert_close(found.decoders, expected.decoders)

    def test_codes_of_a_pass_after_an_interrupted_one(self):
        def interrupt(*_):
            raise Interrupted

        for name in ("codes", "group"):
            with self.subTest(name):
                model, ids, cache = model_of(name), self.text[:, :120], model_of(name).new_cache()
                model(ids[:, :80], past_key_values=cache)
                hook = model.get_decoder().layers[2].register_forward_pre_hook(interrupt)
                with self.assertRaises(Interrupted):
                    model(ids[:, 80:90], past_key_values=cache)
                hook.remove()
                cache.crop(-(cache.get_seq_length() - 70))
                found = self.steps(model, cache, ids[:, 70:])
                torch.testing.assert_close(found, self.continued(model, ids, 70)[:, 1:], atol=1e-3, rtol=1e-3)

    def interrupted(self, model, cache, ids, layer):
        """A pass that ends where attention of `layer` has seen its tokens."""
        def interrupt(*_):
            raise Interrupted

        hook = model.get_decoder().layers[layer].self_attn.o_proj.register_forward_pre_hook(interrupt)
        with self.assertRaises(Interrupted):
            model(ids, past_key_values=cache)
        hook.remove()

    def test_nothing_goes_on_behind_an_interrupted_pass(self):
        for name in CONVERSIONS:
            for layer in (0, 2, 7):
                with self.subTest(name, layer=layer):
                    model, ids, cache = model_of(name), self.text[:, :66], model_of(name).new_cache()
                    model(ids[:, :60], past_key_values=cache)
                    self.interrupted(model, cache, ids[:, 60:61], layer)
                    for go_on in (lambda: model(ids[:, 60:61], past_key_values=cache), lambda: cache.batch_repeat_interleave(2)):
                        with self.assertRaisesRegex(kvconvert.ConversionError, r"ended within the model.*crop\(60\)"):
                            go_on()
                    cache.crop(60)
                    torch.testing.assert_close(self.steps(model, cache, ids[:, 60:]), self.continued(model, ids, 60)[:, 1:],
                                               atol=1e-4, rtol=1e-4)

    def test_keys_that_lost_their_layer(self):
        for name in ("codes", "pca"):
            with self.subTest(name):
                model, cache = model_of(name), model_of(name).new_cache()
                with unittest.mock.patch.object(CodedLayer, "update", lambda self, keys, values, *_: (keys.clone(), values)):
                    with self.assertRaisesRegex(kvconvert.ConversionError, "attention ran without codes"):
                        model(self.text[:, :40], past_key_values=cache)

    def test_nothing_goes_on_behind_an_interrupted_first_pass(self):
        for name in CONVERSIONS:
            with self.subTest(name):
                model, ids, cache = model_of(name), self.text[:, :66], model_of(name).new_cache()
                self.interrupted(model, cache, ids[:, :60], 2)
                with self.assertRaisesRegex(kvconvert.ConversionError, r"first pass ended within the model; call reset\(\)"):
                    model(ids[:, :60], past_key_values=cache)
                cache.reset()
                model(ids[:, :60], past_key_values=cache)
                torch.testing.assert_close(self.steps(model, cache, ids[:, 60:]), self.continued(model, ids, 60)[:, 1:])

    def test_rows_that_an_interrupted_pass_read_back_are_read_again(self):
        """Behind a crop that reaches below the tiles whose exact rows are kept."""
        for name in CONVERSIONS:
            with self.subTest(name):
                model, ids = model_of(name), self.text[:, :110]
                found = []
                for failing in (True, False):
                    cache = model.new_cache()
                    model(ids, past_key_values=cache)
                    cache.crop(40)
                    if failing:
                        self.interrupted(model, cache, ids[:, 40:45], 2)
                        cache.crop(40)
                    found.append(torch.cat([model(part, past_key_values=cache).logits for part in ids[:, 40:].split([5, 1, 1, 40, 23], 1)], 1))
                torch.testing.assert_close(*found, atol=1e-5, rtol=1e-5)

    def test_windows_that_have_dropped_tokens_refuse_a_crop(self):
        model = load(zoo("mistral_window", "--force", method="fusedkv", exact=()))
        cache = model.new_cache()
        model(self.text[:, :20] % 100, past_key_values=cache)
        held = [layer.get_seq_length() for layer in cache.layers]
        with self.assertRaisesRegex(kvconvert.ConversionError, r"window of 9 tokens.*activate_past_recording\(\)"):
            cache.crop(10)
        self.assertEqual([layer.get_seq_length() for layer in cache.layers], held)

    def test_masks_of_numbers_without_a_cache(self):
        model, ids = load(zoo("gemma2")), self.text[:, :12] % 100
        allowed = torch.ones(12, 12, dtype=torch.bool).tril()[None, None]
        added = torch.zeros(1, 1, 12, 12).masked_fill(~allowed, torch.finfo(torch.float32).min)
        found = [model(ids, attention_mask=mask, use_cache=False).logits for mask in (added, allowed)]
        torch.testing.assert_close(*found)


if __name__ == "__main__":
    unittest.main()
