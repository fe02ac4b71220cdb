"""What transformers cannot do with a converted directory is an error that names the subject and the way out."""

import contextlib
import copy
import io
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock
import warnings

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, LlamaConfig

import kvconvert
from kvconvert.codes import CodedCheckpoint
from kvconvert.convert import flags
from kvconvert.transformers.model_codes import ModelCodes

from conversions import REFERENCE, convert, copy_of, edit_config, reference, tensor_place


class RefusalsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)
        cls.directory = reference("--form", "rotated")
        cls.model = AutoModelForCausalLM.from_pretrained(cls.directory, dtype=torch.float32)
        cls.ids = AutoTokenizer.from_pretrained(cls.directory)("Once upon a time", return_tensors="pt").input_ids

    def refused(self, words):
        return self.assertRaisesRegex(kvconvert.ConversionError, words)

    def load(self, directory, **options):
        return AutoModelForCausalLM.from_pretrained(directory, **options)

    def test_exact_tokens(self):
        directory = convert(REFERENCE, "--kept-ratio", "0.3", "--num-sequences", "10", "--seq-len", "128", "--metric", "none",
                            "--form", "full", exact=("--sink", "4", "--window", "64"))
        with self.refused("config.json: the first 4 and last 64 tokens .* --for transformers.*--export folded"):
            self.load(directory)

    def test_prompts_that_the_report_read_exactly(self):
        directory = copy_of(self.directory)
        edit_config(directory, lambda config: config["kvconvert"]["plan"]["policy"].update(prefill="exact"))
        words = "converted with --prefill exact, and engines read prompts through codes"
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("always")
            self.load(directory)
        self.assertRegex("\n".join(str(warning.message) for warning in shown), f"config.json: {words}.*convert with --for vllm or --for transformers")
        self.assertIn(words, str(kvconvert.show(directory)))
        self.assertNotIn("--prefill", str(kvconvert.show(self.directory)))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            CodedCheckpoint(self.directory)

    def test_other_methods(self):
        directory = convert(REFERENCE, "--method", "minicache", "--num-sequences", "8", exact=())
        with self.refused("config.json: method minicache: kvrun alone runs paired, plain layers; .*--export folded"):
            self.load(directory)

    def test_foreign_plan(self):
        directory = copy_of(self.directory)
        edit_config(directory, lambda config: config["kvconvert"]["plan"].update(num_kv_heads=4))
        with self.refused("config.json: the plan is for 4 KV heads, expected 2; convert"):
            self.load(directory)
        edit_config(directory, lambda config: config["kvconvert"]["plan"].update(num_kv_heads=2))
        edit_config(directory, lambda config: config["kvconvert"]["plan"]["coded"][0].update(
            coefficients=[0, 32, 0, 0, 0, 0, 0, 0, 0], gain=True, bases=1, rotated=False))
        with self.refused("model.safetensors: kvconvert.coded.0.* has shape"):
            self.load(directory)

    def test_plan_with_counts_that_are_none(self):
        for name, count in (("window_tokens", -32), ("sink_tokens", "4"), ("window_tokens", True), ("window_tokens", 2**70)):
            directory = copy_of(self.directory)
            edit_config(directory, lambda config: config["kvconvert"]["plan"]["policy"].update({name: count}))
            with self.refused(f"config.json: kvconvert.plan.policy.{name} is {count!r}, expected a number of tokens"):
                self.load(directory)

    def test_plans_of_other_values(self):
        directory = copy_of(self.directory)
        edit_config(directory, lambda config: config["kvconvert"]["plan"]["policy"].update(prefill="x"))
        with self.refused("config.json: kvconvert.plan: .*policy.prefill is 'x', expected 'exact' or"):
            self.load(directory)
        directory = copy_of(self.directory)
        edit_config(directory, lambda config: config["kvconvert"].update(family="qwen2"))
        with self.refused("config.json: model_type is 'kvconvert_llama', expected 'kvconvert_qwen2'"):
            self.load(directory)
        edit_config(directory, lambda config: config.update(model_type="qwen2"))
        with self.refused("config.json: model_type is 'qwen2', expected 'kvconvert_qwen2'"):
            kvconvert.load(directory)

    def test_tensors_that_are_missing(self):
        directory = copy_of(self.directory)
        path = directory / "model.safetensors"
        path.write_bytes(path.read_bytes().replace(b"layers.3.self_attn.q_proj.weight", b"layers.3.self_attn.q_prox.weight", 1))
        with self.refused(f"{directory}: no file has 1 of the model's tensors, such as model.layers.3.self_attn.q_proj.weight"):
            self.load(directory)

    def test_other_format(self):
        directory = copy_of(self.directory)
        edit_config(directory, lambda config: config["kvconvert"].update(format=7))
        with self.refused("config.json.*7, expected 1"):
            self.load(directory)

    def test_number_that_is_not_finite(self):
        directory = copy_of(self.directory)
        path = directory / "model.safetensors"
        begin, _ = tensor_place(path, "kvconvert.coded.0.steps")
        with open(path, "r+b") as file:
            file.seek(begin)
            file.write(b"\xff\xff\xff\xff")
        with self.refused("model.safetensors: the tensors kvconvert.* are damaged"):
            self.load(directory)
        edit_config(directory, lambda config: config["kvconvert"].pop("factors_sha256"))
        with self.refused("model.safetensors: kvconvert.coded.0.steps has a number that is not finite"):
            self.load(directory)

    def test_factors_of_other_types(self):
        directory = copy_of(self.directory)
        edit_config(directory, lambda config: config["kvconvert"].pop("factors_sha256"))
        path = directory / "model.safetensors"
        data, places = bytearray(path.read_bytes()), (b'"dtype":"F32"', b'"dtype":"I32"')
        entry = data.index(b'"kvconvert.coded.0.steps"')
        place = data.index(places[0], entry)
        data[place : place + len(places[0])] = places[1]
        path.write_bytes(data)
        with self.refused("model.safetensors: kvconvert.coded.0.steps is of torch.int32, expected torch.float32"):
            self.load(directory)

    def test_attention_of_another_name(self):
        for name in ("eager", "sdpa"):
            with self.refused(f"attn_implementation '{name}'"):
                self.load(self.directory, attn_implementation=name)
        with self.refused("attn_implementation 'sdpa'"):
            self.model.set_attn_implementation("sdpa")
        self.addCleanup(setattr, self.model.config, "_attn_implementation", self.model.config._attn_implementation)
        self.model.config._attn_implementation = "sdpa"
        with self.refused("attn_implementation 'sdpa'"):
            self.model(self.ids)

    def test_caches_of_another_kind(self):
        for implementation in ("static", "offloaded", "quantized", "offloaded_static"):
            with self.refused(f"cache_implementation '{implementation}'"):
                self.model.generate(self.ids, cache_implementation=implementation, max_new_tokens=2)
        with self.refused("past_key_values: a DynamicCache"):
            self.model(self.ids, past_key_values=DynamicCache(config=self.model.config))

    def test_caches_of_another_model(self):
        other = self.load(reference("--form", "rotated"), dtype=torch.float32)
        with torch.no_grad(), self.refused("past_key_values: a cache of another model"):
            self.model(self.ids, past_key_values=other.new_cache())

    def test_copies(self):
        with self.refused("is not copied; load its directory again"):
            copy.deepcopy(self.model)
        plain = AutoModelForCausalLM.from_config(self.model.config)
        copied = copy.deepcopy(plain)
        self.assertIsNot(copied.lm_head.weight, plain.lm_head.weight)
        self.assertTrue(torch.equal(copied.lm_head.weight, plain.lm_head.weight))
        with self.refused("is not pickled; load its directory in each process"):
            pickle.dumps(self.model)
        cache = self.model(self.ids).past_key_values
        for by_value in (pickle.dumps, copy.copy):
            with self.refused(r"a CodedCache is neither saved nor copied by copy.copy\(\)"):
                by_value(cache)

    def test_what_a_pass_cannot_give_or_take(self):
        with self.refused("output_attentions: the kernels .* keep no probabilities"):
            self.model(self.ids, output_attentions=True)
        with self.refused("input_ids: list, expected"):
            self.model([[1, 2]])
        with self.refused("use_cache=False beside past_key_values"):
            self.model.generate(self.ids, past_key_values=self.model.new_cache(), use_cache=False, max_new_tokens=2)

    def test_numbers_of_64_bits(self):
        with self.refused("config.json: codes of float64 keys and values, expected float32"):
            self.load(self.directory, dtype=torch.float64)
        with self.refused("config.json: codes of float64 keys and values, expected float32"):
            self.load(self.directory).double()(self.ids)
        latents = convert(REFERENCE, "--method", "palu", "--rank", "0.5", "--num-sequences", "8", exact=())
        with self.refused("config.json: latents of float64 keys and values, expected float32"):
            self.load(latents, dtype=torch.float64)

    def test_inputs_without_rows(self):
        for options, words in (({}, "none"), ({"input_ids": self.ids[0]}, r"of shape \(5,\)"), ({"input_ids": self.ids[:0]}, r"of shape \(0, 5\)")):
            with self.refused(f"input_ids: {words}, expected .batch, tokens."):
                self.model(**options)

    def test_weights_on_no_device(self):
        with torch.device("meta"):
            plain = AutoModelForCausalLM.from_config(self.model.config)
        with self.refused("config.json: weights that are offloaded lie on no device"):
            ModelCodes(plain.get_decoder(), CodedCheckpoint(self.directory))

    def test_the_familys_own_configuration_reads_the_models_sizes(self):
        own = LlamaConfig.from_pretrained(self.directory)
        self.assertEqual((own.hidden_size, own.num_hidden_layers), (self.model.config.hidden_size, self.model.config.num_hidden_layers))

    def test_generation_while_gradient_checkpointing_is_on(self):
        self.addCleanup(self.model.eval)
        self.addCleanup(self.model.gradient_checkpointing_disable)
        self.model.train()
        self.model.gradient_checkpointing_enable()
        with self.refused(r"gradient checkpointing drops the cache .*gradient_checkpointing_disable\(\)"):
            self.model.generate(self.ids, max_new_tokens=3)

    def test_continuous_batching(self):
        with self.refused("continuous batching .*serve the directory with vLLM"):
            self.model.set_attn_implementation("paged|kvconvert")

    def test_rows_without_a_token(self):
        mask = torch.ones(2, self.ids.shape[1], dtype=torch.long)
        mask[1] = 0
        with self.refused("attention_mask: row 1 is all padding, .*; leave the row out"):
            self.model.generate(self.ids.repeat(2, 1), attention_mask=mask, max_new_tokens=3)

    def test_directories(self):
        with self.refused("reference-llama/config.json: no conversion: it has no kvconvert.plan"):
            kvconvert.load(REFERENCE)
        with self.refused("/no/such/place: no such directory"):
            kvconvert.load("/no/such/place")
        directory = copy_of(self.directory)
        (directory / "model.safetensors").write_bytes((directory / "model.safetensors").read_bytes()[:1000])
        with self.refused("model.safetensors: no safetensors file: .*; export again"):
            kvconvert.show(directory)
        (directory / "model.safetensors").unlink()
        with self.refused("no weights: no .*safetensors there"):
            kvconvert.show(directory)

    def test_masks_and_positions(self):
        with self.refused("attention_mask: .*expected"):
            self.model(self.ids, attention_mask=torch.ones(1, 1, 5, 5, dtype=torch.bool))
        with self.refused("position_ids: expected each token's index"):
            self.model(self.ids, position_ids=torch.arange(7, 7 + self.ids.shape[1])[None])
        cache = self.model(self.ids).past_key_values
        hidden = torch.ones(1, self.ids.shape[1] + 1, dtype=torch.long)
        hidden[0, 0] = 0
        with self.refused("attention_mask: hides tokens"):
            self.model(self.ids[:, :1], past_key_values=cache, attention_mask=hidden)

    def test_text_longer_than_the_model(self):
        with self.refused("1025 tokens: .* 1024; shorten"):
            self.model(torch.ones(1, 1025, dtype=torch.long))
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("always")
            self.model.generate(self.ids, max_length=1025, max_new_tokens=None, eos_token_id=int(self.model(self.ids).logits[0, -1].argmax()))
        self.assertRegex("\n".join(str(warning.message) for warning in shown), "max_length 1025: the model was converted for 1024 tokens")

    def test_batch_of_another_size(self):
        cache = self.model(self.ids).past_key_values
        with self.refused("holds 1 sequences, this call has 2"):
            self.model(self.ids.repeat(2, 1), past_key_values=cache)

    def test_saving(self):
        with tempfile.TemporaryDirectory() as folder, self.refused("saved by copying its directory; .*state_dict"):
            self.model.save_pretrained(folder)

    def test_model_without_codes(self):
        model = AutoModelForCausalLM.from_config(self.model.config)
        with self.refused("load it with from_pretrained"):
            model.generate(self.ids, max_new_tokens=2)

    def test_compiled_forward(self):
        compiled = torch.compile(self.model, backend="eager")
        with torch.no_grad():
            torch.testing.assert_close(compiled(self.ids).logits, self.model(self.ids).logits, atol=1e-4, rtol=1e-4)
            cache = self.model(self.ids).past_key_values
            found = compiled(self.ids[:, :1], past_key_values=cache).logits
            cache.crop(-1)
            expected = self.model(self.ids[:, :1], past_key_values=cache).logits
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


class OptionsTest(unittest.TestCase):
    """What kvconvert.plan() and convert() make of keyword arguments."""

    def test_flags(self):
        self.assertEqual(flags({"kept_ratio": 0.25, "force": False, "validate": False, "calibration": ["a", "b"], "seed": None}),
                         ["--kept-ratio", "0.25", "--no-validate", "--calibration", "a", "b"])
        self.assertEqual(flags({"for_": "transformers", "calibration": []}), ["--for", "transformers"])

    def test_an_interrupt_ends_the_program(self):
        with tempfile.TemporaryDirectory() as folder:
            # A test runner in the background of a shell ignores interrupts, and so does what it starts.
            code = ("import signal, kvconvert; signal.signal(signal.SIGINT, signal.default_int_handler); "
                    f"kvconvert.convert({str(REFERENCE)!r}, out={folder + '/x'!r}, num_sequences=200, validate=False)")
            process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
            while not any(pathlib.Path(folder).iterdir()):
                self.assertIsNone(process.poll())
                time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            self.assertIn("KeyboardInterrupt", process.communicate(timeout=120)[1])
            left = {path.name for path in pathlib.Path(folder).iterdir()}
            self.assertFalse({name for name in left if "partial" in name or name == "x"}, left)
            running = subprocess.run(["pgrep", "-f", f"{folder}/x"], capture_output=True, text=True).stdout
            self.assertEqual(running, "")

    def test_notes_come_while_the_program_runs(self):
        """The program waits for an answer to its first note."""
        with tempfile.TemporaryDirectory() as folder:
            answer, program = pathlib.Path(folder) / "answer", pathlib.Path(folder) / "kvconvert"
            program.write_text(f"""#!/bin/sh
echo 'calibration 1/2' >&2
for _ in $(seq 600); do [ -e {answer} ] && break; sleep 0.1; done
[ -e {answer} ] || {{ echo 'error: no answer' >&2; exit 1; }}
echo '{{"answered": true}}'
""", encoding="utf-8")
            program.chmod(0o755)

            class Answering(io.StringIO):
                def write(self, text):
                    answer.touch()
                    return super().write(text)

            with (unittest.mock.patch.dict(os.environ, KVCONVERT_BIN=folder),
                  contextlib.redirect_stderr(Answering()) as notes):
                self.assertEqual(kvconvert.plan(REFERENCE), {"answered": True})
            self.assertEqual(notes.getvalue(), "calibration 1/2\n")

    def test_values(self):
        self.assertAlmostEqual(kvconvert.plan(REFERENCE, kept_ratio=0.25, force=False)["kept_ratio_coded"], 0.25, delta=0.01)

    def test_refusals(self):
        for name in ("help", "version", "list_models", "plan"):
            with self.assertRaisesRegex(TypeError, f"{name} is an option of the command line alone"):
                kvconvert.plan(REFERENCE, **{name: True})
        with self.assertRaisesRegex(kvconvert.ProgramError, "not expected: --kept-ratios 0.2; see"):
            kvconvert.plan(REFERENCE, kept_ratios=0.2)
        with self.assertRaisesRegex(kvconvert.ProgramError, "^[^-]*-none"):
            kvconvert.plan("-none", kept_ratio=0.2)


if __name__ == "__main__":
    unittest.main()
