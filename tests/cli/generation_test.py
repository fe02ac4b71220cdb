#!/usr/bin/env python3
"""kvrun's generation: text as it appears, stop strings, samples, sampling as the authors set it, interruption, statistics."""

import json
import shutil
import signal
import subprocess
import time
import unittest

from programs import REFERENCE, STORIES, ProgramTest, command

GREEDY = ("--prompt", "Once upon a time")
TEXT = ", there was a little girl named Lily. She loved to play outside in the park."


class Generation(ProgramTest):
    def text(self, *arguments, model=STORIES):
        return self.run_ok("kvrun", model, *GREEDY, "--max-new-tokens", "40", *arguments).stdout

    def json(self, *arguments, model=STORIES):
        process = self.run_ok("kvrun", model, *arguments, "--max-new-tokens", "40", "--json")
        return json.loads(process.stdout)  # fails where there is more than one result

    def start(self, *arguments):
        process = subprocess.Popen(command("kvrun", STORIES, "--ignore-eos", *arguments), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.kill)
        return process

    def test_ends_before_a_stop_string(self):
        self.assertTrue(self.text().startswith(TEXT))
        self.assertEqual(self.text("--stop", "She loved"), ", there was a little girl named Lily. \n")
        self.assertEqual(self.text("--stop", "park", "--stop", "girl"), ", there was a little \n")
        self.assertEqual(self.text("--stop", "no such text"), self.text())

    def test_stop_strings_of_a_batch_end_each_sequence(self):
        ids = self.directory / "ids.json"
        ids.write_text("[[1, 403, 407, 261, 378], [1, 403, 407, 261, 378, 432, 383, 286, 261], [1, 403]]")
        whole, cut = self.json("--ids", ids), self.json("--ids", ids, "--stop", "girl")
        for before, after in zip(whole["text"], cut["text"]):
            self.assertEqual(after, before.split("girl")[0])
        self.assertLess(len(cut["tokens"][0]), 40)

    def test_stop_strings_of_a_conversation(self):
        model = self.directory / "model"
        shutil.copytree(STORIES, model)
        (model / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}", encoding="utf-8")
        lines = self.run_chat(model, "Once upon a time\n?\n", "--stop", "named", "--json").splitlines()
        first, second = map(json.loads, lines)
        self.assertEqual(first["text"], ", there was a little girl ")
        self.assertGreater(second["prompt_tokens"], first["prompt_tokens"])

    def run_chat(self, model, lines, *arguments):
        process = subprocess.run(command("kvrun", model, "--chat", "--max-new-tokens", "40", *arguments), input=lines,
                                 capture_output=True, text=True, timeout=240)
        self.assertEqual(process.returncode, 0, process.stderr)
        return process.stdout

    def test_samples_share_a_prompt(self):
        several = self.json(*GREEDY, "--temperature", "1", "--seed", "5", "--num-samples", "3")
        for i in range(3):
            alone = self.json(*GREEDY, "--temperature", "1", "--seed", 5 + i)
            self.assertEqual(several["tokens"][i], alone["tokens"])
            self.assertEqual(several["text"][i], alone["text"])
        self.assertEqual(several["timing"]["prefill_tokens"], 5)
        lines = self.text("--temperature", "1", "--seed", "5", "--num-samples", "3").splitlines()
        self.assertEqual(list(map(json.loads, lines)), several["text"])

    def test_sampling_as_the_authors_set_it(self):
        model = self.directory / "model"
        shutil.copytree(STORIES, model)
        settings = {"temperature": 0.7, "top_k": 30, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.1, "eos_token_id": 2}
        (model / "generation_config.json").write_text(json.dumps(settings), encoding="ascii")
        flags = [word for name, value in settings.items() if name != "eos_token_id"
                 for word in ("--" + name.replace("_", "-"), str(value))]
        self.assertEqual(self.json(*GREEDY, "--sample", model=model)["tokens"], self.json(*GREEDY, *flags)["tokens"])
        self.assertEqual(self.json(*GREEDY, "--sample", "--temperature", "0", "--repetition-penalty", "1", model=model)["tokens"],
                         self.json(*GREEDY)["tokens"])
        self.assertEqual(self.text(model=model), self.text())

    def test_a_limit_of_the_peak_suffices_for_policies_that_drop_tokens(self):
        """One layer at a time has a token more than the policy keeps."""
        ids = self.directory / "ids.json"
        ids.write_text(json.dumps(list(range(3, 43))), encoding="ascii")
        for policy in ("zeromerge:budget=48", "streamingllm:sink=4,window=44"):
            run = ("kvrun", STORIES, "--ids", ids, "--policy", policy, "--dtype", "float32", "--max-new-tokens", "40", "--ignore-eos", "--stats", "--json")
            free = json.loads(self.run_ok(*run).stdout)
            limited = json.loads(self.run_ok(*run, "--memory", free["memory"]["kv_peak_bytes"]).stdout)
            self.assertEqual(limited["tokens"], free["tokens"])

    def test_values_that_cannot_be(self):
        for flag, value in (("--min-p", "1.5"), ("--min-p", "-0.1"), ("--repetition-penalty", "0"), ("--repetition-penalty", "1e-60"),
                            ("--top-p", "0"), ("--top-k", "-1"), ("--temperature", "nan"), ("--num-samples", "0"), ("--prefill-chunk", "-1"), ("--stop", "")):
            self.assert_refused({2}, [flag], "kvrun", STORIES, *GREEDY, flag, value)
        for option in (("--top-k", "3"), ("--top-p", "0.5"), ("--min-p", "0.3")):
            for greedy in ((), ("--temperature", "0")):
                self.assert_refused({2}, [option[0], "add --temperature or --sample"], "kvrun", STORIES, *GREEDY, *option, *greedy)
        ids, out = self.directory / "ids.json", self.directory / "logits"
        ids.write_text("[1, 100000]", encoding="ascii")
        for more in ((), ("--plan",)):
            self.assert_refused({1}, ["token id 100000 is outside the vocabulary"], "kvrun", STORIES, "--ids", ids, *more)
        ids.write_text("[1, 2, 3]", encoding="ascii")
        for more in (("--logits", out), ("--warm-up",)):
            self.assert_refused({2}, [more[0], "--plan generates nothing"], "kvrun", STORIES, "--ids", ids, "--plan", *more)
        for more in (("--prompt", "x"), ("--ids", ids), ("--chat",), ("--plan",), ("--logits", out)):
            self.assert_refused({2}, [more[0], "--tokenize prints"], "kvrun", STORIES, "--tokenize", ids, *more)
        self.assert_refused({1}, ["ids.json", "--logits"], "kvrun", STORIES, "--ids", ids, "--logits", ids, "--force")
        self.assertEqual(ids.read_text(encoding="ascii"), "[1, 2, 3]")
        self.assert_refused({2}, ["--num-samples"], "kvrun", STORIES, "--chat", "--prompt", "x", "--num-samples", "2")
        for flag in ("--plan", "--warm-up"):
            self.assert_refused({2}, [flag, "--chat"], "kvrun", STORIES, "--chat", "--prompt", "x", flag)
        self.assert_refused({2}, ["--prefill-tokens"], "kvrun", STORIES, "--chat", "--prompt", "x", "--prefill-tokens", "5")
        model = self.directory / "model"
        shutil.copytree(STORIES, model)
        (model / "generation_config.json").write_text('{"top_p": 7}', encoding="ascii")
        self.assert_refused({1}, ["generation_config.json", "7"], "kvrun", model, *GREEDY, "--sample")

    def test_text_appears_as_it_is_generated_and_an_interrupt_keeps_it(self):
        process = self.start(*GREEDY, "--max-new-tokens", "100000")
        beginning = process.stdout.read(len(TEXT))
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=240)
        self.assertEqual(process.returncode, 130, errors)
        self.assertEqual(beginning.decode(), TEXT)
        self.assertTrue(rest.endswith(b"\n"))
        self.assertIn(b"interrupted", errors)

    def test_an_interrupted_result_says_so(self):
        result = self.ended_result(self.start(*GREEDY, "--max-new-tokens", "100000", "--json", "--stats"))
        self.assertEqual(result["kv"]["tokens"], 5 + len(result["tokens"]) - 1)

    def test_an_interrupt_ends_the_reading_of_a_long_prompt(self):
        ids = self.directory / "ids.json"
        ids.write_text(json.dumps([1] + [403] * 120000))  # minutes
        process = self.start("--ids", ids, "--max-new-tokens", "1")
        time.sleep(1.5)
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 130, errors)
        self.assertEqual(output.strip(), b"")

    def test_weights_in_8_bits(self):
        """A quarter of float32's bytes, other logits, and the same greedy text."""
        results, logits = [], []
        for weights in ((), ("--weight-dtype", "int8")):
            file = self.directory / f"{len(logits)}.safetensors"
            results.append(self.json(*GREEDY, *weights, "--stats", "--logits", file))
            logits.append(file.read_bytes())
        whole, quantised = results
        self.assertEqual(quantised["tokens"], whole["tokens"])
        self.assertAlmostEqual(quantised["memory"]["weight_bytes"] / whole["memory"]["weight_bytes"], 0.27, delta=0.02)
        self.assertNotEqual(*logits)
        self.assert_refused({2}, ["--weight-dtype", "int8"], "kvrun", STORIES, *GREEDY, "--weight-dtype", "int4")

    def test_statistics(self):
        process = self.run_ok("kvrun", STORIES, *GREEDY, "--max-new-tokens", "10", "--stats", "--json")
        result = json.loads(process.stdout)
        timing, memory = result["timing"], result["memory"]
        for parts, seconds in (("prefill_parts", "prefill_seconds"), ("decode_parts", "decode_seconds")):
            self.assertEqual(set(timing[parts]), {"model", "attention", "compression", "logits", "sampling"})
            self.assertLessEqual(sum(timing[parts].values()), timing[seconds])
        self.assertGreaterEqual(memory["kv_peak_bytes"], result["kv"]["bytes"])
        self.assertGreater(memory["peak_resident_bytes"], memory["weight_bytes"])
        for word in ("first token after", "tokens/s", "attention", "weights", "pending", "resident"):
            self.assertIn(word, process.stderr)

    def test_plans_a_run_on_a_gpu_without_one(self):
        ids = self.directory / "ids.json"
        ids.write_text(json.dumps(list(range(1, 1001))))
        run = (REFERENCE, "--ids", ids, "--dtype", "bfloat16", "--plan", "--json", "--device", "cuda")
        plan = json.loads(self.run_ok("kvrun", *run, "--policy", "h2o:budget=64").stdout)
        # 12 layers of 64 rows of 2 heads: keys and values of 32 numbers, score and position.
        self.assertEqual(plan["end_bytes"], 12 * 64 * 2 * (2 * 32 * 2 + 8))
        self.assertEqual(plan["reading_bytes"] - plan["end_bytes"], 1000 * 2 * 2 * 32 * 2)
        batch = self.directory / "batch.json"
        batch.write_text(json.dumps([list(range(1, 1001)), list(range(1, 41))]))
        both = json.loads(self.run_ok("kvrun", REFERENCE, "--ids", batch, *run[3:], "--max-new-tokens", "2").stdout)
        # Whole pages of each sequence, 32 tokens.
        self.assertEqual(both["original_bytes"], 12 * (1024 + 64) * 2 * (2 * 32 * 2))
        self.assert_refused({1}, ["--policy think", "--device cpu"], "kvrun", *run, "--policy", "think")
        self.assert_refused({2}, ["--device"], "kvrun", *run[:-1], "gpu")

    def test_a_plan_counts_samples_and_beams(self):
        ids = self.directory / "ids.json"
        ids.write_text("[5, 6, 7, 8, 9]")
        run = "--ids", ids, "--max-new-tokens", "60", "--ignore-eos"
        for copies, exact in (("--num-samples", "4", "--temperature", "1"), True), (("--beams", "4"), False):
            plan = json.loads(self.run_ok("kvrun", REFERENCE, *run, *copies, "--plan", "--json").stdout)
            alone = json.loads(self.run_ok("kvrun", REFERENCE, *run, "--plan", "--json").stdout)
            peak = json.loads(self.run_ok("kvrun", REFERENCE, *run, *copies, "--stats", "--json").stdout)["memory"]["kv_peak_bytes"]
            self.assertEqual(plan["end_bytes"], 4 * alone["end_bytes"])
            self.assertEqual(plan["kept_ratio"], 1)
            (self.assertEqual if exact else self.assertLess)(peak, plan["end_bytes"])

    def test_prompts_in_pieces_give_the_same_tokens(self):
        ids = self.directory / "ids.json"
        ids.write_text(json.dumps([1] + [403 + i % 90 for i in range(300)]))
        whole = self.json("--ids", ids, "--prefill-chunk", "0")
        for chunk in (1, 64, 299):
            pieces = self.json("--ids", ids, "--prefill-chunk", chunk)
            self.assertEqual(pieces["tokens"], whole["tokens"])
            self.assertEqual(pieces["kv"], whole["kv"])


if __name__ == "__main__":
    unittest.main()
