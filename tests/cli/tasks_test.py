#!/usr/bin/env python3
"""kvvalidate --tasks: scores of both models, reports, thresholds, and runs that are interrupted and continued."""

import hashlib
import json
import shutil
import signal
import subprocess
import time
import unittest

from programs import DATA, REFERENCE, ProgramTest, command, copy_checkpoint

# Little text, so that the tasks take the time.
QUICK = ("--num-sequences", "1", "--seq-len", "64")
PLAIN = ("--kv-dtype", "float32")
EVICTING = ("--policy", "streamingllm:sink=4,window=16")


def record(task, context, answer):
    return {"context": context, "question": "What is it? ", "answer_prefix": "It is a", "answer": answer, "task": task,
            "max_new_tokens": 6}


class Tasks(ProgramTest):
    def setUp(self):
        super().setUp()
        self.results = self.directory / "results.jsonl"
        self.left = self.directory / ".results.jsonl.partial"

    def arguments(self, *more):
        return (REFERENCE, REFERENCE, *QUICK, *more, "--task-results", self.results)

    def lines(self):
        return [json.loads(line) for line in self.results.read_text(encoding="utf-8").splitlines()]

    def test_an_identical_pair_scores_equal(self):
        report, html = self.directory / "report.json", self.directory / "report.html"
        process = self.run_ok("kvvalidate", *self.arguments(
            "--tasks", "passkey,niah_single_2", "--task-length", "512", "--task-samples", "2", *PLAIN,
            "--min-task-ratio", "1", "--report", report, "--html", html, "--quiet"))
        tasks = json.loads(report.read_text(encoding="utf-8"))["tasks"]
        self.assertEqual([(row["task"], row["length"], row["num_samples"]) for row in tasks],
                         [("passkey", 512, 2), ("niah_single_2", 512, 2)])
        for row in tasks:
            self.assertEqual(row["reference"], row["candidate"])
            self.assertEqual(row["difference"], {"mean": 0.0, "standard_error": 0.0})
            self.assertIn(row["task"], process.stdout)
            undecided = f"{row['task']} at 512 tokens: the original scores 0, so --min-task-ratio 1 says nothing"
            self.assertEqual(undecided in process.stdout, row["reference"]["mean"] == 0)
        self.assertIn("<td>niah_single_2</td><td>512</td><td>2</td>", html.read_text(encoding="utf-8"))
        lines = self.lines()
        self.assertEqual(len(lines), 4)
        for line in lines:
            self.assertEqual(line["reference"], line["candidate"])
            self.assertLessEqual(line["prompt_tokens"], 512)
            self.assertEqual(len(line["answers"]), len(line["reference"]["outputs"]))
        self.assertEqual(process.stderr, "")

    def test_a_lost_fact_misses_the_threshold(self):
        process = subprocess.run(
            command("kvvalidate", *self.arguments("--tasks", "recall", "--task-length", "128", "--task-samples", "2",
                                                  *EVICTING, "--min-task-ratio", "0.5")),
            capture_output=True, text=True, timeout=240)
        self.assertEqual(process.returncode, 3, process.stderr)
        self.assertIn("recall at 128 tokens", process.stderr)
        self.assertIn("is below --min-task-ratio 0.5", process.stderr)

    def test_an_interrupted_run_continues(self):
        arguments = self.arguments("--tasks", "passkey", "--task-length", "120,140,160,180", "--task-samples", "2", "--quiet",
                                   *EVICTING)
        self.run_ok("kvvalidate", *arguments)
        uninterrupted = self.results.read_bytes()
        self.assertEqual(uninterrupted.count(b"\n"), 8)
        self.results.unlink()
        process = subprocess.Popen(command("kvvalidate", *arguments), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                   text=True)
        while process.poll() is None and (not self.left.exists() or self.left.stat().st_size == 0):
            time.sleep(0.002)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, errors)  # later prompts were still to come
        self.assertFalse(self.results.exists())
        done = self.left.read_bytes()
        self.assertTrue(uninterrupted.startswith(done[:done.rfind(b"\n") + 1]))
        self.run_ok("kvvalidate", *arguments)
        self.assertEqual(self.results.read_bytes(), uninterrupted)
        self.assertFalse(self.left.exists())
        # A killed run may leave a part of a batch.
        self.results.unlink()
        self.left.write_bytes(uninterrupted[:len(uninterrupted) // 2])
        self.run_ok("kvvalidate", *arguments)
        self.assertEqual(self.results.read_bytes(), uninterrupted)
        # Lines that no run leaves.
        self.results.unlink()
        first, second, *_ = uninterrupted.splitlines(keepends=True)
        unscored = [json.dumps(json.loads(second) | {model: {}}).encode() + b"\n" for model in ("reference", "candidate")]
        for left, line in ((second + first, 1), (first + first, 2), *((first + bad, 2) for bad in unscored), (uninterrupted + first, 9)):
            self.left.write_bytes(left)
            self.assert_refused({1}, [self.left.name, f"line {line} is not what an interrupted run leaves"], "kvvalidate", *arguments)
        self.left.write_bytes(first + first)
        self.run_ok("kvvalidate", *arguments, "--force")
        self.assertEqual(self.results.read_bytes(), uninterrupted)
        self.results.unlink()
        # What another run left.
        self.left.write_bytes(uninterrupted[:len(uninterrupted) // 2])
        self.assert_refused({1}, ["left by an interrupted run", "--force"], "kvvalidate", *arguments, "--seed", "1")

    def test_other_stop_tokens_are_another_run(self):
        model = copy_checkpoint(REFERENCE, self.directory / "model")
        arguments = ("kvvalidate", model, model, *QUICK, *PLAIN, "--tasks", "passkey", "--task-length", "120,140", "--task-samples", "1",
                     "--quiet", "--task-results", self.results)
        self.run_ok(*arguments)
        self.left.write_bytes(self.results.read_bytes().splitlines(keepends=True)[0])
        self.results.unlink()
        generation = model / "generation_config.json"
        generation.write_text(json.dumps(json.loads(generation.read_text(encoding="utf-8")) | {"eos_token_id": [1, 2, 3]}))
        self.assert_refused({1}, ["left by an interrupted run"], *arguments)

    def kvpress_file(self, *records):
        path = self.directory / "ruler.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
        return path

    def test_kvpress_records(self):
        long = record("qa_1", "Tom saw a tree. " * 40, ["tree", "dog"])
        data = self.kvpress_file(record("vt", "Lily had a ball.", ["ball"]), long, record("vt", "A cat ran.", ["cat", "dog"]),
                                 record("vt", "Never read. " * 100, ["x"]))
        options = ("--tasks", "kvpress", "--task-text", data, "--task-samples", "2", *PLAIN)
        refusal = self.assert_refused({1}, ["--task-length 60", "never shortened", "give --task-length "], "kvvalidate",
                                      *self.arguments(*options, "--task-length", "60"))
        least = int(refusal.rsplit("give --task-length ", 1)[1].split()[0])
        self.assert_refused({1}, [f"give --task-length {least}"], "kvvalidate",
                            *self.arguments(*options, "--task-length", least - 1))
        arguments = self.arguments(*options, "--task-length", least, "--quiet")
        self.run_ok("kvvalidate", *arguments)
        lines = self.lines()
        self.assertEqual([(line["task"], line["sample"]) for line in lines],
                         [("kvpress/vt", 0), ("kvpress/vt", 1), ("kvpress/qa_1", 0)])
        self.assertEqual(lines[1]["answers"], [["cat", "dog"]])
        self.assertEqual(lines[2]["prompt_tokens"] + long["max_new_tokens"], least)
        text = long["context"] + long["question"] + "\n" + long["answer_prefix"]
        self.assertEqual(lines[2]["prompt_sha256"], hashlib.sha256(text.encode()).hexdigest())
        for line in lines:
            self.assertEqual(line["reference"], line["candidate"])
        # The same run goes on; one over another file is another run.
        written = self.results.read_bytes()
        self.results.unlink()
        self.left.write_bytes(written[:-20])
        self.run_ok("kvvalidate", *arguments)
        self.assertEqual(self.results.read_bytes(), written)
        self.results.unlink()
        self.left.write_bytes(written[:-20])
        self.kvpress_file(record("vt", "Lily had a hat.", ["hat"]))
        self.assert_refused({1}, ["left by an interrupted run"], "kvvalidate", *arguments)

    def test_prompts_go_through_the_chat_template(self):
        model = copy_checkpoint(REFERENCE, self.directory / "model")
        shutil.copy(DATA / "chat" / "zephyr.jinja", model / "chat_template.jinja")
        # triviaqa's prompt ends with the record's text, so the answer is that of a chat.
        line = {"input": "Question: Who ran?", "context": "A dog ran.", "answers": ["dog"], "dataset": "triviaqa", "all_classes": None}
        data = self.directory / "bench.jsonl"
        data.write_text((json.dumps(line) + "\n") * 2, encoding="utf-8")
        report, html = self.directory / "report.json", self.directory / "report.html"
        options = (*QUICK, *PLAIN, "--tasks", "longbench", "--task-text", data, "--task-length", "256", "--quiet", "--task-results",
                   self.results)
        chat = ("kvvalidate", model, REFERENCE, *options, "--task-chat")  # the candidate needs no template
        process = self.run_ok(*chat, "--report", report, "--html", html)
        self.assertIn("asked through the original's chat template", process.stdout)
        self.assertTrue(json.loads(report.read_text(encoding="utf-8"))["options"]["tasks"]["chat"])
        self.assertIn("chat template", html.read_text(encoding="utf-8"))
        told, _ = self.lines()
        self.assertTrue(told["chat"])
        prompt = "Answer the last question from its passage, as the examples do.\n\nA dog ran.\n\nQuestion: Who ran?"
        self.assertEqual(told["prompt_sha256"], hashlib.sha256(prompt.encode()).hexdigest())
        said = json.loads(self.run_ok("kvrun", model, "--chat", "--prompt", prompt, "--max-new-tokens", "32", "--dtype", "float32",
                                      "--json").stdout)
        self.assertEqual(told["reference"]["outputs"], [said["text"]])
        self.assertEqual(told["candidate"], told["reference"])
        self.assertEqual(told["prompt_tokens"], said["prompt_tokens"])
        written = self.results.read_bytes()
        # The template is a part of the run.
        self.results.unlink()
        self.left.write_bytes(written[:-20])
        shutil.copy(DATA / "chat" / "chatml.jinja", model / "chat_template.jinja")
        self.assert_refused({1}, ["left by an interrupted run"], *chat)
        shutil.copy(DATA / "chat" / "zephyr.jinja", model / "chat_template.jinja")
        self.run_ok(*chat)
        self.assertEqual(self.results.read_bytes(), written)
        self.results.unlink()
        self.run_ok("kvvalidate", model, REFERENCE, *options)
        plain, _ = self.lines()
        self.assertFalse(plain["chat"])
        self.assertNotEqual(plain["run"], told["run"])
        self.assertLess(plain["prompt_tokens"], told["prompt_tokens"])

    def test_bad_options_are_refused_before_any_model_runs(self):
        both = (REFERENCE, REFERENCE, *QUICK)
        self.assert_refused({2}, ["unknown task 'niah'", "niah_single_1"], "kvvalidate", *both, "--tasks", "niah")
        self.assert_refused({1}, ["--tasks qa_1", "SQuAD", "--task-text FILE"], "kvvalidate", *both, "--tasks", "qa_1")
        self.assert_refused({1}, ["has no chat template", "Leave --task-chat out"], "kvvalidate", *both, "--tasks", "passkey",
                            "--task-chat")
        self.assert_refused({2}, ["options of tasks without a task"], "kvvalidate", *both, "--task-chat")


if __name__ == "__main__":
    unittest.main()
