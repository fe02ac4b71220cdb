#!/usr/bin/env python3
"""kvconvert --sweep: its candidates, what it shares, its answers, and how it goes on after an interruption."""

import json
import pathlib
import re
import signal
import subprocess
import time
import unittest
from html.parser import HTMLParser

from programs import STORIES, ProgramTest, command, run

EFFORT = ("--num-sequences", "8", "--seq-len", "128", "--calibration", "builtin")
LINES = ("pca --kept-ratio {0.6,0.4}", "coded --metric none --form {full,rotated} --kept-ratio 0.4", "plain --kv-dtype int8")
NAMES = ["pca --kept-ratio 0.6", "pca --kept-ratio 0.4", "coded --metric none --form full --kept-ratio 0.4",
         "coded --metric none --form rotated --kept-ratio 0.4", "plain --kv-dtype int8"]


class Page(HTMLParser):
    """Checks that elements close in order and that nothing is loaded from elsewhere."""

    VOID = ("meta", "br")

    def __init__(self, text):
        super().__init__()
        self.open, self.texts = [], []
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        assert tag not in ("script", "img", "link", "iframe"), tag
        assert not {"src", "href"} & {name for name, _ in attrs}, attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag

    def handle_data(self, data):
        self.texts.append(data)


class Sweep(ProgramTest):
    def arguments(self, *lines, out="out", effort=EFFORT):
        return (STORIES, "--out", self.directory / out, *effort, *(word for line in lines for word in ("--sweep", line)))

    def results(self, out="out"):
        return json.loads((self.directory / out / "sweep.json").read_text(encoding="utf-8"))

    def test_measures_every_candidate_as_a_conversion_of_its_own(self):
        printed = self.run_ok("kvconvert", *self.arguments(*LINES), "--quiet").stdout
        sweep = self.results()
        self.assertEqual([row["name"] for row in sweep["candidates"]], NAMES)
        for row in sweep["candidates"]:
            self.assertEqual(row["status"], "measured")
            self.assertIn(row["name"], printed)
        self.assertEqual([path.name for path in self.directory.iterdir()], ["out"])
        for name in (NAMES[1], NAMES[2]):
            row = next(row for row in sweep["candidates"] if row["name"] == name)
            words = name.split()
            self.run_ok("kvconvert", STORIES, "--out", self.directory / "alone", "--force", *EFFORT, "--quiet", "--method", *words)
            alone = json.loads((self.directory / "alone" / "report.json").read_text(encoding="utf-8"))
            for setting in ("continuation", "teacher_forced"):
                self.assertEqual(row["validation"][setting], alone[setting], name)
            self.assertEqual(row["kept_ratio"], alone["kept_ratio"])
            self.assertEqual(row["payback"], alone["payback"])
            self.assertTrue(row["command"].startswith("kvconvert CHECKPOINT --"))
            self.assertEqual(sorted(row["command"].split()[2:]), sorted([*EFFORT, "--method", *words]))
        self.check_answers(sweep)
        for row in sweep["candidates"]:
            layers = row["validation"]["layers"]
            self.assertEqual([layer["layer"] for layer in layers], list(range(5)))
            kept = sum(layer["kept_ratio"] for layer in layers) / len(layers)
            self.assertLess(kept, 1)
            self.assertGreaterEqual(row["kept_ratio"] + 1e-9, kept)  # sinks and windows come on top
        self.check_memory(sweep)
        page = Page((self.directory / "out" / "report.html").read_text(encoding="utf-8"))
        for name in NAMES:
            self.assertIn(name, page.texts)
        warnings = {warning for row in sweep["candidates"] for warning in row["validation"]["warnings"]}
        self.assertTrue(warnings)  # the text is short
        for warning in warnings:
            self.assertEqual(printed.count(warning), 1)
            self.assertTrue(any(warning in text for text in page.texts), warning)

    def check_answers(self, sweep):
        measured = sorted(sweep["candidates"], key=lambda row: (row["kept_ratio"], kld(row)[0]))
        for answer in sweep["answers"]:
            target = answer["kl_divergence"]
            sure = [row["name"] for row in measured if sum_of(row) <= target]
            self.assertEqual(answer["candidate"], sure[0] if sure else None)
            before = measured if not sure else measured[:[row["name"] for row in measured].index(sure[0])]
            self.assertEqual(answer["unsure"], [row["name"] for row in before if kld(row)[0] <= target])
        self.assertTrue(any(answer["candidate"] for answer in sweep["answers"]))

    def check_memory(self, sweep):
        """The longest cache is that of the plan, and int8 is about half."""
        rows = {row["name"]: row for row in sweep["candidates"]}
        plan = json.loads(self.run_ok("kvconvert", STORIES, "--plan", "--json", *EFFORT, "--method", "pca", "--kept-ratio", "0.4").stdout)
        cache = rows[NAMES[1]]["cache"][-1]
        self.assertEqual(cache["tokens"], 512)
        self.assertAlmostEqual(cache["bytes"] / cache["original_bytes"], plan["kept_ratio_at_target"], delta=1e-3)
        int8 = rows["plain --kv-dtype int8"]["cache"][-1]
        self.assertLess(int8["bytes"], 0.8 * int8["original_bytes"])
        self.assertIsNone(rows["plain --kv-dtype int8"]["payback"])

    def test_an_interrupted_sweep_goes_on(self):
        work = self.directory / ".out.work" / "results"
        process = subprocess.Popen(command("kvconvert", *self.arguments(*LINES[:2])), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        while process.poll() is None and (not work.exists() or len(list(work.glob("*.json"))) < 2):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        self.assertEqual((process.communicate(timeout=120)[0], process.returncode), (None, 130))
        self.assertFalse((self.directory / "out").exists())
        finished = {path.name: path.stat().st_mtime_ns for path in work.glob("*.json")}
        self.assertGreaterEqual(len(finished), 2)
        messages = self.run_ok("kvconvert", *self.arguments(*LINES[:2])).stderr
        self.assertEqual(messages.count("measurement: reused from an earlier run\n"), len(finished), messages)
        self.run_ok("kvconvert", *self.arguments(*LINES[:2], out="again"), "--quiet")
        self.assertEqual(self.results(), self.results("again"))

    def test_shares_statistics_and_names_refusals(self):
        work = self.directory / "work"
        messages = self.run_ok("kvconvert", *self.arguments("pca --kept-ratio {0.5,0.3}", "pca --kept-ratio 0.0001"), "--work", work).stderr
        self.assertEqual(messages.count("covariance: reused from an earlier run"), 1, messages)
        self.assertNotIn("does not match", messages)
        for row in self.results()["candidates"][:2]:
            kld = row["validation"]["continuation"]["kl_divergence"]
            self.assertIn(f"kept_ratio {row['kept_ratio']:.3f}, KL divergence {kld['mean']:.3g} ± {kld['standard_error']:.2g}\n",
                          messages)
        self.assertRegex(messages, r"the original's logits took [1-9][0-9.]* MiB")
        self.assertEqual([path.name for path in work.rglob("*reference*")], [])
        refused = self.results()["candidates"][2]
        self.assertEqual(refused["status"], "refused")
        self.assertIn("--kept-ratio", refused["reason"])

    def test_plan_reads_a_file_and_writes_nothing(self):
        lines = self.directory / "lines.txt"
        lines.write_text("# a comment\n\n  coded --kept-ratio {0.5,0.25}\t\nplain --policy h2o:budget=64\ncoded --kept-ratio 0.5{, --gain on}\n")
        plan = json.loads(self.run_ok("kvconvert", *self.arguments(lines), "--plan", "--json").stdout)
        self.assertEqual([row["name"] for row in plan["candidates"]],
                         ["coded --kept-ratio 0.5", "coded --kept-ratio 0.25", "plain --policy h2o:budget=64",
                          "coded --kept-ratio 0.5 --gain on"])
        self.assertAlmostEqual(plan["candidates"][1]["kept_ratio"], 0.25, delta=0.01)
        self.assertEqual([path.name for path in self.directory.iterdir()], ["lines.txt"])
        default = json.loads(self.run_ok("kvconvert", *self.arguments("default"), "--plan", "--json").stdout)
        self.assertGreater(len(default["candidates"]), 10)

    def test_wrong_lines_are_refused_before_any_work(self):
        for line, word in (("coded --kept-ratio {0.5", "braces"), ("coded }", "braces"), ("coded --kept-ratio {{0.5}}", "braces"),
                           ("nonesuch --kept-ratio 0.5", "nonesuch"), ("coded --nonesuch", "nonesuch"),
                           ("coded --kept-ratio x", "--kept-ratio"), ("coded --rank 0.5", "--rank"), ("coded --out x", "--out"),
                           ("coded --plan", "--plan"), ("pca --export folded", "--export"), ("plain", "plain"), ("plain --policy full", "--policy"),
                           ("coded --kept-ratio {0.5,}", "--kept-ratio lacks its value"), ("coded {,--gain}", "--gain lacks"),
                           ("plain --kv-dtype int3", "int3"), ("plain --policy best", "best"), ("coded --kv-dtype int8", "does not apply to the method coded"),
                           ("coded " + "{}" * 100, "more than 64 groups"), ("", "--sweep")):
            with self.subTest(line):
                self.assert_refused((2,), (word,), "kvconvert", *self.arguments(line))
        empty = self.directory / "empty.txt"
        empty.write_text("# nothing\n")
        self.assert_refused((1,), ("empty.txt", "no line"), "kvconvert", *self.arguments(empty))
        self.assert_refused((2,), ("--method",), "kvconvert", *self.arguments("pca"), "--method", "pca")
        self.assert_refused((2,), ("--no-validate: ",), "kvconvert", *self.arguments("pca"), "--no-validate")
        for option in (("--kept-ratio", "7"), ("--num-sequences", "3"), ("--tokens-in-flight", "-3")):
            self.assert_refused((2,), (option[0],), "kvconvert", STORIES, "--sweep", "plain --kv-dtype int8", *option, "--plan")

    def points(self, text):
        path = self.directory / "points.json"
        path.write_text(text, encoding="utf-8")
        return path

    def test_shows_other_caches_beside_the_candidates(self):
        given = {"small <1>": {"kept_ratio": 0.01, "kld": 0.5, "kld_error": None},
                 "large": {"kept_ratio": 0.9, "kld": 0.25, "kld_error": 0.125, "same_top": 0.5}}
        arguments = *self.arguments("pca --kept-ratio {0.5,0.3}"), "--sweep-points", self.points(json.dumps(given)), "--quiet"
        printed = self.run_ok("kvconvert", *arguments).stdout
        sweep = self.results()
        self.assertEqual(sweep["points"], [
            {"name": name, "kept_ratio": entry["kept_ratio"],
             "kl_divergence": {"mean": entry["kld"], "standard_error": entry["kld_error"]}} for name, entry in given.items()])
        best = min(sweep["candidates"], key=kld)
        self.assertRegex(printed, r"(?m)^  small <1>: 0.010, 0.5; none of these$")
        self.assertRegex(printed, rf"(?m)^  large: 0.900, 0.25 ± 0.12; {re.escape(best['name'])}: ")
        page = Page((self.directory / "out" / "report.html").read_text(encoding="utf-8"))
        for text in ("Other caches", "small <1>", "large", "other caches", "large: 0.25 ± 0.12", f"{0.25 / kld(best)[0]:.3g}"):
            self.assertIn(text, page.texts)

    def test_wrong_points_are_refused_before_any_work(self):
        for text, words in (("", ()), ("[]", ("object",)), ("{}", ("object",)), ('{"a": 1}', ("a", "kept_ratio", "found 1")),
                            ('{"a": {"kld": 1}}', ("a: kept_ratio", "nothing")), ('{"a": {"kept_ratio": 0, "kld": 1}}', ("a: kept_ratio", "0")),
                            ('{"a": {"kept_ratio": 0.5, "kld": -1}}', ("a: kld", "-1")),
                            ('{"a": {"kept_ratio": 0.5, "kld": "x"}}', ("a: kld", "x")),
                            ('{"a": {"kept_ratio": 0.5, "kld": 1, "kld_error": []}}', ("a: kld_error",)),
                            ('{"a": {"kept_ratio": 1e999, "kld": 1}}', ())):
            with self.subTest(text):
                path = self.points(text)
                self.assert_refused((1,), ("points.json", *words), "kvconvert", *self.arguments("pca"), "--sweep-points", path)
                self.assertEqual(list(self.directory.iterdir()), [path])
        self.assert_refused((1,), ("nowhere.json",), "kvconvert", *self.arguments("pca"), "--sweep-points", "nowhere.json")
        self.assert_refused((2,), ("--sweep",), "kvconvert", STORIES, "--sweep-points", path)

    def test_inputs_inside_the_output_are_refused_and_stay(self):
        out = self.directory / "out"
        out.mkdir()
        text = out / "text.txt"
        text.write_text("Once upon a time there was a cat. " * 200)
        lines = out / "lines.txt"
        lines.write_text("pca --kept-ratio 0.5\n")
        for given in (("--validation-text", text), ("--calibration", text), ("--sweep", lines), ("--sweep", f"coded --calibration {text}")):
            with self.subTest(given[0]):
                self.assert_refused((1,), (given[-1].name if isinstance(given[-1], pathlib.Path) else "text.txt",), "kvconvert", STORIES,
                                    "--out", out, "--sweep", "pca --kept-ratio 0.5", *given, "--force")
        self.assert_refused((2,), ("--work",), "kvconvert", *self.arguments("pca"), "--work", out / "work", "--force")

    def test_a_fit_below_its_limit_is_refused(self):
        self.run_ok("kvconvert", *self.arguments("fusedkv", "pca --kept-ratio 0.5"))
        rows = self.results()["candidates"]
        self.assertEqual([row["status"] for row in rows], ["refused", "measured"])
        self.assertIn("--min-r2", rows[0]["reason"])

    def test_a_failure_leaves_the_others(self):
        """Too little calibration text for a group's channels is known only once it is read."""
        line = "coded --metric none --scope {head,group} --group 5 --kept-ratio 0.4"
        process = run("kvconvert", *self.arguments(line, effort=("--num-sequences", "2", "--seq-len", "64", "--calibration", "builtin")))
        self.assertEqual(process.returncode, 1, process.stderr)
        self.assertIn("1 of 2 candidates failed", process.stderr)
        self.assertEqual([row["status"] for row in self.results()["candidates"]], ["measured", "failed"])


def kld(row):
    found = row["validation"]["continuation"]["kl_divergence"]
    return found["mean"], found["standard_error"]


def sum_of(row):
    mean, error = kld(row)
    return mean + 2 * error


if __name__ == "__main__":
    unittest.main()
