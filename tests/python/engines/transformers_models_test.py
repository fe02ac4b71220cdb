"""Every family of docs/models.md that `coded` converts loads in transformers and computes what it should."""

import pathlib
import shutil
import tempfile
import unittest
from unittest import mock

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer

import kvconvert  # noqa: F401  registers the families
from kvconvert.hub import local_directory
from kvconvert.transformers import FAMILIES, CodedCache

from conversions import DATA, zoo
from latent_cases import kvrun

TOKENS, STEPS, NEW_TOKENS = 100, 30, 4  # of a prompt, those of them that are read one by one, and those behind it
MOST_DIFFERENCE = 0.005  # from kvrun's logits on average, in standard deviations: sums have another order
NEAR_TIE = 0.05  # likewise, of two tokens

# Cases of tests/data/zoo that together have every family, windows, softcaps, partial RoPE and layers without RoPE.
CASES = (
    "llama_gqa", "llama_llama3", "llama_yarn", "llama_mqa_bias", "mistral_window", "ministral", "qwen2_window",
    "qwen3_bias_window", "gemma", "gemma2", "gemma3_text", "gemma3_nested", "phi3_partial_window", "olmo2_gqa", "olmo3",
    "exaone4", "seed_oss", "smollm3", "granite", "starcoder2", "mixtral_window", "qwen2_moe", "qwen3_moe",
)


class ModelsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)
        torch.set_grad_enabled(False)

    def test_every_family_is_a_case(self):
        configs = {AutoConfig.from_pretrained(DATA / "zoo" / case).model_type for case in CASES}
        self.assertEqual(configs | {"deepseek_v2"}, set(FAMILIES))  # latent attention: coded refuses it

    def test_families(self):
        for case in CASES:
            with tempfile.TemporaryDirectory() as measured:  # once for both
                for form in ("full", "rotated"):
                    with self.subTest(case=case, form=form):
                        self.check(case, zoo(case, "--form", form, "--work", measured))

    def check(self, case, directory):
        golden = load_file(DATA / "zoo" / f"{case}.safetensors")
        exact, missing = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, exact_step=True,
                                                              output_loading_info=True)
        self.assertFalse({kind for kind, names in missing.items() if names}, missing)
        coded = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        for prompt in range(2):
            ids, expected = golden[f"ids.{prompt}"][None].long(), golden[f"logits.{prompt}"].float()
            # One pass that reads its own tokens exactly is the original model.
            torch.testing.assert_close(exact(ids).logits[0], expected, atol=2e-3, rtol=2e-3)
            torch.testing.assert_close(coded(ids, use_cache=False).logits[0], expected, atol=2e-3, rtol=2e-3)
        # Tokens behind the first tile read codes: in one pass and one by one those that kvrun reads.
        ids = torch.cat((golden["ids.0"], golden["ids.1"])).repeat(3)[None, :TOKENS].long()
        printed, (expected,) = kvrun(directory, ids, NEW_TOKENS, "--dtype", "float32", "--threads", 1)
        output, cache = coded(ids), coded.new_cache()
        self.assertIsInstance(output.past_key_values, CodedCache)
        steps = torch.cat([coded(part, past_key_values=cache).logits[0] for part in ids.split((TOKENS - STEPS, *[1] * STEPS), 1)])
        for found in (output.logits[0], steps):
            self.assertLess((found - expected).abs().mean().item(), MOST_DIFFERENCE * expected.std().item())
        # Logits of random weights amplify every error; without relation to the original's, the mean would be
        # 1.1 standard deviations.
        original = coded(ids, use_cache=False).logits[0]
        self.assertLess((expected - original).abs().mean().item(), 0.4 * original.std().item())
        found = coded.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None,
                               pad_token_id=0)
        for tokens in (printed["tokens"], found[0, TOKENS:].tolist()):
            self.assertEqual(len(tokens), NEW_TOKENS)
            cache.crop(TOKENS)
            last = steps[-1]
            for token in tokens:
                self.assertLess((last.max() - last[token]).item(), NEAR_TIE * expected.std().item())
                last = coded(torch.tensor([[token]]), past_key_values=cache).logits[0, -1]

    def test_other_auto_classes(self):
        directory = zoo("llama_gqa", "--form", "full")
        self.assertEqual(AutoConfig.from_pretrained(directory).model_type, "kvconvert_llama")
        model = AutoModel.from_pretrained(directory, dtype=torch.float32)
        self.assertEqual(type(model).__name__, "LlamaModel")
        self.assertIsInstance(model(torch.tensor([[1, 2, 3]])).past_key_values, CodedCache)
        self.assertTrue(AutoTokenizer.from_pretrained(directory)("Once").input_ids)

    def test_a_name_on_a_hub(self):
        """Weights are fetched before they are read: here, by a name in a local copy of the hub."""
        directory = zoo("llama_gqa", "--form", "full")
        with tempfile.TemporaryDirectory() as hub:
            model = pathlib.Path(hub) / "models--someone--small"
            shutil.copytree(directory, model / "snapshots" / "0123")
            (model / "refs").mkdir()
            (model / "refs" / "main").write_text("0123")
            loaded = AutoModelForCausalLM.from_pretrained("someone/small", cache_dir=hub, local_files_only=True, dtype=torch.float32)
        ids = torch.tensor([[1, 2, 3]])
        expected = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)(ids).logits
        self.assertTrue(torch.equal(loaded(ids).logits, expected))
        for folder, files in (("", ["*.json", "*.safetensors"]), ("part", ["part/*.json", "part/*.safetensors"])):
            with mock.patch("huggingface_hub.snapshot_download", return_value="/copy") as download:
                found = local_directory("someone/small", folder, revision="main")
            self.assertEqual(found, pathlib.Path("/copy") / folder)
            download.assert_called_once_with("someone/small", allow_patterns=files, revision="main")

    def test_text_longer_than_a_table_of_rope_is_refused(self):
        model = AutoModelForCausalLM.from_pretrained(zoo("llama_dynamic", "--form", "full", "--force"), dtype=torch.float32)
        model(torch.ones(1, 16, dtype=torch.long))
        with self.assertRaisesRegex(kvconvert.ConversionError, "17 tokens: .* 16; shorten"):
            model(torch.ones(1, 17, dtype=torch.long))


if __name__ == "__main__":
    unittest.main()
