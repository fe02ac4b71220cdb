#!/usr/bin/env python3
"""generate() with the ops of a GPU, which run in the emulator on tensors of the CPU, beside those of the CPU: bfloat16."""

import contextlib
import unittest
from unittest import mock

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import kvconvert.codes
import kvconvert.tiled_attention
from kvconvert.device_codes import DeviceCodes
from kvconvert.factors import ConversionError
from kvconvert.transformers import CodedCache

from conversions import reference
from latent_cases import EXACT, PCA, latent

PROMPTS = ("Once upon a time there was a little girl who lived in a small house near the forest with her mother and her "
           "father. She had a red ball that she loved", "The dog")
LENGTH = 6


@contextlib.contextmanager
def on_device():
    """Codes are opened, and prompts attended to, as on a GPU."""
    with mock.patch.object(kvconvert.codes, "codes_class", lambda _: DeviceCodes), \
            mock.patch.object(kvconvert.tiled_attention, "has_kernel", lambda _: False):
        yield


class Devices(unittest.TestCase):
    FORMS = (("rotated", "head"), ("full", "group"))

    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)
        torch.set_grad_enabled(False)

    def models(self, form, scope, *more):
        """A conversion on the CPU, and as on a GPU."""
        directory = reference("--form", form, "--scope", scope, *more) if scope != "group" else reference("--scope", "group", "--group", 2)
        self.tokenizer = AutoTokenizer.from_pretrained(directory)
        self.tokenizer.pad_token, self.tokenizer.padding_side = self.tokenizer.eos_token, "left"
        host = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16)
        with on_device():
            return host, AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16)

    def test_logits_and_bytes_are_those_of_the_cpu(self):
        for form, scope in self.FORMS:
            with self.subTest(form=form, scope=scope):
                host, device = self.models(form, scope)
                batch = self.tokenizer(list(PROMPTS), return_tensors="pt", padding=True)
                options = {"do_sample": False, "max_new_tokens": LENGTH, "pad_token_id": 1, "eos_token_id": None}
                with on_device():
                    tokens = device.generate(**batch, **options)
                mask = torch.cat((batch.attention_mask, torch.ones(2, LENGTH, dtype=torch.long)), 1)
                own, expected = CodedCache(device.coded), CodedCache(host.coded)
                for part in (slice(0, 25), slice(25, 26), slice(26, tokens.shape[1])):
                    until = mask[:, :part.stop]
                    with on_device():
                        logits = device(tokens[:, part], attention_mask=until, past_key_values=own).logits
                    of_host = host(tokens[:, part], attention_mask=until, past_key_values=expected).logits
                    difference = (logits - of_host).float().abs()[until[:, part].bool()]
                    self.assertLess(difference.mean().item(), 0.05)
                    self.assertLess(difference.max().item(), 1.0)
                self.assertEqual(own.nbytes(), expected.nbytes())
                # Greedy tokens are likely ones for the CPU too.
                of_host = host(tokens, attention_mask=mask).logits[:, -LENGTH - 1:-1].float()
                chosen = of_host.gather(-1, tokens[:, -LENGTH:, None])[..., 0]
                self.assertLess((of_host.amax(-1) - chosen).max().item(), 1.0)

    def test_windows(self):
        host, device = self.models("rotated", "head", "--window", "32")
        ids = self.tokenizer(" ".join(PROMPTS * 4), return_tensors="pt").input_ids
        own, expected = CodedCache(device.coded), CodedCache(host.coded)
        for part in ids[:, :140].split([70, 1, 1, 68], 1):
            with on_device():
                logits = device(part, past_key_values=own).logits
            difference = (logits - host(part, past_key_values=expected).logits).float().abs()
            self.assertLess(difference.mean().item(), 0.05)
            self.assertLess(difference.max().item(), 1.0)

    def test_beams_and_taking_back(self):
        with on_device():
            _, device = self.models(*self.FORMS[0])
            ids = self.tokenizer(PROMPTS[1], return_tensors="pt").input_ids
            options = {"do_sample": False, "max_new_tokens": 6, "pad_token_id": 1, "attention_mask": torch.ones_like(ids)}
            self.assertEqual(device.generate(ids, num_beams=3, **options).shape[0], 1)
            cache = device.new_cache()
            whole = device(torch.arange(5, 75)[None], past_key_values=cache).logits
            cache.crop(-40)
            again = device(torch.arange(35, 75)[None], past_key_values=cache).logits
            self.assertLess((again - whole[:, 30:]).abs().mean().item(), 0.05)

    def test_latents(self):
        """Prompts in pieces, tokens one by one, padded batches; calibrated latents, and those that projections give."""
        for options, exact in ((PCA, EXACT), (("--method", "palu", "--rank", "0.5"), ())):
            with self.subTest(method=options[1]):
                directory = latent(*options, exact=exact)
                tokenizer = AutoTokenizer.from_pretrained(directory)
                tokenizer.pad_token, tokenizer.padding_side = tokenizer.eos_token, "left"
                model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
                batch = tokenizer(list(PROMPTS), return_tensors="pt", padding=True)
                ids = tokenizer(" ".join(PROMPTS * 2), return_tensors="pt").input_ids
                found = []
                for context in (contextlib.nullcontext, on_device):
                    cache = model.new_cache()
                    with context(), mock.patch("kvconvert.latent_attention.ops", side_effect=AssertionError) if found else context():
                        # A tensor that is made where torch makes them, and not beside the model's, cannot be computed with.
                        with torch.device("meta") if found else context():
                            logits = [model(part, past_key_values=cache).logits for part in ids[:, :74].split([60, 1, 1, 1, 9, 1, 1], 1)]
                        found.append((torch.cat(logits, 1), cache.nbytes(), model.generate(
                            **batch, do_sample=False, max_new_tokens=LENGTH, pad_token_id=1, eos_token_id=None)))
                torch.testing.assert_close(found[1][0], found[0][0], atol=2e-3, rtol=2e-3)
                self.assertEqual(found[1][1], found[0][1])
                self.assertEqual(found[1][2].tolist(), found[0][2].tolist())

    def test_latents_move_with_the_model(self):
        model = AutoModelForCausalLM.from_pretrained(latent(*PCA, exact=EXACT), dtype=torch.float32)
        for latents in model.coded.latents:
            latents.use(torch.bfloat16, torch.device("meta"))
            rebuild = [part for pair in (*latents.decoders, *latents.offsets) for part in pair]
            others = [part for pair in (*latents.encoders, *(form.rope for form in latents.forms)) for part in pair]
            self.assertEqual({(part.device.type, part.dtype) for part in rebuild}, {("meta", torch.bfloat16)})
            self.assertEqual({(part.device.type, part.dtype) for part in (*others, latents.mean_latent)}, {("meta", torch.float32)})

    def test_floats_are_refused(self):
        directory = reference("--form", "rotated", "--scope", "head")
        with on_device():
            model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
            with self.assertRaisesRegex(ConversionError, "load the model with dtype=bfloat16"):
                model(torch.arange(5, 15)[None])


if __name__ == "__main__":
    unittest.main()
