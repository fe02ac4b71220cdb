"""How forward passes may run: in inference mode, under autocast, in threads, for gradients, and after an interrupted one."""

import functools
import threading
import unittest
import unittest.mock

import torch

import kvconvert
from kvconvert.codes import LayerCodes

from conversions import reference
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
                    with self.assertRaisesRegex(kvconvert.ConversionError, "attention over a cache has no gradients.*use_cache=False"):
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
                for call in store.call_args_list:  # a tile's tokens are neighbours
                    self.assertEqual(call.args[2].tolist(), list(range(70)))
                torch.testing.assert_close(found, model(ids, past_key_values=expected).logits[0], atol=2e-3, rtol=2e-3)
                behind = self.in_passes(model, cache, ids[:, :5], mask)
                torch.testing.assert_close(behind, self.in_passes(model, expected, ids[:, :5], torch.ones_like(ids)), atol=2e-3, rtol=2e-3)

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


if __name__ == "__main__":
    unittest.main()
