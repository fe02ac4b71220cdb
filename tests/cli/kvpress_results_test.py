#!/usr/bin/env python3
"""bench/kvpress_results.py: result directories of kvpress from a run of kvvalidate, its metrics against ones by other code, refusals."""

import ast
import csv
import hashlib
import json
import pathlib
import re
import subprocess
import sys
import unittest

from programs import REFERENCE, ProgramTest, listing

SCRIPT = pathlib.Path(__file__).resolve().parent.parent.parent / "bench/kvpress_results.py"
STATED = ["dataset", "data_dir", "model", "device", "press_name", "compression_ratio", "key_channel_compression_ratio", "fraction",
          "max_new_tokens", "max_context_length", "query_aware", "needle_depth", "compression_interval", "target_size",
          "hidden_states_buffer_size", "output_dir", "log_level", "model_kwargs", "press_init_command", "seed", "fp8"]


def record(task, context, answer):
    return {"context": context, "question": "What is it? ", "answer_prefix": "It is", "answer": answer, "task": task, "max_new_tokens": 8}


def result(record, sample, reference, candidate, **changes):
    prompt = record["context"] + record["question"] + "\n" + record["answer_prefix"]
    return {"run": "0123456789abcdef", "task": "kvpress/" + record["task"], "length": 4096, "seed": 7, "sample": sample,
            "prompt_sha256": hashlib.sha256(prompt.encode()).hexdigest(), "answers": [record["answer"]],
            "reference": {"score": 0, "outputs": [reference]}, "candidate": {"score": 0, "outputs": [candidate]}, **changes}


def recomputed(predictions):
    """Scores from the words of the metric alone: control characters go, "qa" needs one answer, others are shares."""
    shares = {}
    with open(predictions, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            text = "".join(c for c in row["predicted_answer"].strip() if ord(c) >= 32).strip()
            hits = [answer.lower() in text.lower() for answer in ast.literal_eval(row["answer"])]
            share = float(any(hits)) if re.match("qa(_|$)", row["task"]) else sum(hits) / len(hits)
            shares.setdefault(row["task"], []).append(share)
    return {task: {"string_match": round(100 * sum(all_) / len(all_), 2)} for task, all_ in shares.items()}


class KvpressResults(ProgramTest):
    def setUp(self):
        super().setUp()
        self.data, self.results, self.out = (self.directory / name for name in ("data.jsonl", "results.jsonl", "out"))

    def write(self, path, objects):
        path.write_text("".join(json.dumps(one) + "\n" for one in objects), encoding="utf-8")

    def script(self, *more, code=0):
        process = subprocess.run([sys.executable, SCRIPT, self.results, self.data, "--name", "coded", "--kept-ratio", "0.25", "--model",
                                  "some/model", "--out", self.out, *more], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(process.returncode, code, process.stderr)
        return process

    def assert_metrics(self, directory, expected):
        metrics = json.loads((directory / "metrics.json").read_text(encoding="utf-8"))
        self.assertEqual(metrics, recomputed(directory / "predictions.csv"))
        self.assertEqual(metrics, expected)
        self.assertEqual(list(metrics), sorted(metrics))

    def test_metrics_by_hand(self):
        records = [record("vt", "one", ["AB", "CD", "EF"]), record("qa_1", "two", ["red", "blue"]), record("vt", "three", ["GH"]),
                   record("qa_1", "four", ["\u00c9lan"])]
        self.write(self.data, records)
        self.write(self.results, [result(records[0], 0, " AB, cd\n", "A\x01B"), result(records[2], 1, "gh", "none"),
                                  result(records[1], 0, "It is blue.", ""), result(records[3], 1, "\u00e9LAN", "\"elan\", he said"),
                                  {"task": "passkey"}])
        reference, candidate = map(pathlib.Path, self.script().stdout.split())
        self.assertEqual(reference.name, "ruler__4096__some--model__no_press__0.00")
        self.assertEqual(candidate.name, "ruler__4096__some--model__coded__0.75")
        self.assert_metrics(reference, {"qa_1": {"string_match": 100.0}, "vt": {"string_match": 83.33}})
        self.assert_metrics(candidate, {"qa_1": {"string_match": 0.0}, "vt": {"string_match": 16.67}})
        with open(candidate / "predictions.csv", encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual(set(rows[0]), {"question", "answer_prefix", "answer", "task", "max_new_tokens", "predicted_answer",
                                        "compression_ratio"})
        self.assertEqual([row["predicted_answer"] for row in rows], ["A\x01B", "none", "", "\"elan\", he said"])
        self.assertEqual({row["compression_ratio"] for row in rows}, {"0.75"})
        config = (candidate / "config.yaml").read_text(encoding="utf-8")
        self.assertEqual([line.partition(":")[0] for line in config.splitlines()], STATED)
        for line in ("data_dir: '4096'", "model: some/model", "device: null", "press_name: coded", "compression_ratio: 0.75",
                     "fraction: 1.0", "query_aware: false", "model_kwargs: {}", "seed: 7",
                     "press_init_command: 'kvvalidate --tasks kvpress, run 0123456789abcdef'"):
            self.assertIn(line + "\n", config)
        self.assertIn("press_name: no_press\ncompression_ratio: 0.0\n", (reference / "config.yaml").read_text(encoding="utf-8"))
        before = listing(self.out)
        self.assertIn("exists; remove it", self.script(code=1).stderr)
        self.assertEqual(listing(self.out), before)

    def test_a_run_of_kvvalidate(self):
        records = [record(task, f"{words} " * 6, answer) for words in ("Lily had a red ball.", "Tom saw a big tree.")
                   for task, answer in (("vt", ["a", "the", "zebra"]), ("qa_2", ["was", "zebra"]))]
        self.write(self.data, records)
        self.run_ok("kvvalidate", REFERENCE, REFERENCE, "--num-sequences", "1", "--seq-len", "64", "--quiet",
                    "--policy", "streamingllm:sink=2,window=8", "--tasks", "kvpress", "--task-text", self.data, "--task-samples", "1",
                    "--task-length", "256", "--task-results", self.results)
        lines = [json.loads(line) for line in self.results.read_text(encoding="utf-8").splitlines()]
        directories = {model: pathlib.Path(path) for model, path in zip(("reference", "candidate"), self.script().stdout.split())}
        for model, directory in directories.items():
            self.assertTrue(directory.name.endswith("__fraction0.500"), directory)
            # kvvalidate's own scores, of the task's only sample.
            self.assert_metrics(directory, {line["task"].removeprefix("kvpress/"): {"string_match": round(line[model]["score"], 2)}
                                            for line in lines})

    def test_refusals(self):
        records = [record("vt", "one", ["AB"]), record("vt", "two", ["CD"])]
        good = result(records[0], 0, "AB", "AB")
        other = result(records[1], 1, "CD", "CD")
        for lines, words in (([dict(good, sample=1)], "results.jsonl:1: its prompt is not record 1 of task vt"),
                             ([dict(good, sample=2)], "results.jsonl:1: its prompt is not record 2 of task vt"),
                             ([dict(good, task="kvpress/fwe")], "its prompt is not record 0 of task fwe"),
                             ([good, good], "results.jsonl:2: record 0 of task vt has another line before"),
                             ([good, dict(other, length=8192)], "results.jsonl:2: of another length"),
                             ([good, dict(other, run="another")], "results.jsonl:2: of another run"),
                             ([dict(good, task=7)], 'results.jsonl:1: "task" must be a text, found 7'),
                             ([dict(good, sample=0.0)], 'results.jsonl:1: "sample" must be a whole number, found 0.0'),
                             ([dict(good, candidate={"score": 0, "outputs": []})], '"candidate" has no "outputs"'),
                             ([dict(good, reference="text")], '"reference" has no "outputs"'),
                             ([{"task": "passkey"}], "has no line of --tasks kvpress"),
                             ([{"run": "x"}], 'results.jsonl:1: "task" is missing'),
                             ([{"task": "kvpress/vt"}], 'results.jsonl:1: "run" is missing'),
                             ([[]], "results.jsonl:1: expected a JSON object")):
            self.write(self.data, records)
            self.write(self.results, lines)
            self.assertIn(words, self.script(code=1).stderr)
            self.assertFalse(self.out.exists())
        self.write(self.results, [good])
        self.write(self.data, [{name: value for name, value in records[0].items() if name != "answer"}])
        self.assertIn('data.jsonl:1: "answer" is missing', self.script(code=1).stderr)
        self.write(self.data, [dict(records[0], answer=[])])
        self.assertIn('data.jsonl:1: "answer" must be a list with texts, found []', self.script(code=1).stderr)
        self.assertFalse(self.out.exists())
        self.assertIn("--kept-ratio 25", self.script("--kept-ratio", "25", code=2).stderr)
        self.assertIn("--name no_press", self.script("--name", "no_press", code=2).stderr)
        self.data.unlink()
        self.assertIn("data.jsonl: cannot be read", self.script(code=1).stderr)


if __name__ == "__main__":
    unittest.main()
