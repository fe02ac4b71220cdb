#!/usr/bin/env python3
"""What every program has in common, options that cannot be right, and plans from a config alone."""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
import unittest
from pathlib import Path

from programs import BIN, DATA, PROGRAMS, REFERENCE, STORIES, ProgramTest, listing, run

CONFIGS = DATA / "configs"


class CommonOptions(ProgramTest):
    def test_help_names_the_common_options(self):
        for program in PROGRAMS:
            process = self.run_ok(program, "--help")
            for option in ("--device", "--threads", "--seed", "--force", "--quiet", "--json", "--log-level", "--version"):
                self.assertIn(option, process.stdout, program)
            self.assertEqual(process.stderr, "", program)

    def test_version_names_program_and_version(self):
        for program in PROGRAMS:
            self.assertRegex(self.run_ok(program, "--version").stdout, rf"^{program} \d+\.\d+\.\d+\n$")

    def test_usage_errors_exit_with_two(self):
        for program in PROGRAMS:
            self.assert_refused({2}, ["--help"], program, STORIES, "--no-such-option")
            self.assert_refused({2}, ["--help"], program)
            self.assert_refused({2}, ["--threads"], program, STORIES, "--threads", "many")

    def test_empty_values(self):
        """Those of a variable that a script has not set: no threshold, file or number is left out in silence."""
        pair = ("kvvalidate", STORIES, STORIES)
        for arguments in ((*pair, "--max-kld", ""), (*pair, "--report", ""), (*pair, "--block", ""), (*pair, "--text", ""),
                          ("kvrun", STORIES, "--prompt", "x", "--max-new-tokens", ""), ("kvrun", STORIES, "--prompt", "x", "--temperature", ""),
                          ("kvrun", STORIES, "--prompt", "x", "--logits", ""), ("kvconvert", STORIES, "--plan", "--out", ""),
                          ("kvconvert", STORIES, "--plan", "--window", "")):
            option = [word for word in arguments if str(word).startswith("--")][-1]
            self.assert_refused({2}, [option, "expected a value, found ''"], *arguments)
        self.assert_refused({2}, ["no prompt"], "kvrun", STORIES, "--prompt", "")
        self.run_ok("kvrun", STORIES, "--chat", "--chat-template", DATA / "chat/llama2.jinja", "--prompt", "x", "--system", "", "--max-new-tokens", "1")

    def test_a_list_of_files_before_the_checkpoint(self):
        """A list ends before a directory; where that is missing, the message says what the list took."""
        texts = [self.directory / name for name in ("a.txt", "b.txt")]
        for text in texts:
            text.write_text("Once upon a time there was a cat. " * 400)
        effort = ("--num-sequences", "2", "--seq-len", "64")
        repeated = [word for text in texts for word in ("--calibration", text)]
        for given in (("--calibration", *texts, STORIES), (f"--calibration={texts[0]}", STORIES), (*repeated, STORIES), (STORIES, *repeated),
                      ("--calibration", texts[0], STORIES), (STORIES, "--calibration", *texts)):
            self.run_ok("kvconvert", *effort, "--plan", *given)
            self.run_ok("kvcalibrate", *given, *effort, "--force", "--out", self.directory / "calibration.h5")
        score = ("--num-sequences", "1", "--seq-len", "64")
        for given in (("--text", texts[0], STORIES, STORIES), (STORIES, "--text", texts[0], STORIES), (STORIES, STORIES, "--text", *texts)):
            self.run_ok("kvvalidate", *given, *score)
        absent = self.directory / "absent"
        out = ("--out", self.directory / "out")
        for option in ("--calibration", "--validation-text"):
            self.assert_refused({2}, ["checkpoint is required", f"{option} took {texts[0]} {absent}", "before it"],
                                "kvconvert", option, texts[0], absent, *out)
        for program in ("kvcalibrate", "kvfisher"):
            self.assert_refused({2}, ["checkpoint is required"], program, "--calibration", texts[0], *out)
            self.assert_refused({2}, [f"--calibration {absent}: expected"], program, "--calibration", texts[0], absent, *out)
        self.assert_refused({2}, ["reference is required", f"--text took {texts[0]} {absent}"], "kvvalidate", "--text", texts[0], absent, *score)
        self.assert_refused({2}, ["--out is required"], "kvcalibrate", STORIES, "--calibration", *texts)

    def test_a_missing_checkpoint_is_named(self):
        absent = self.directory / "absent"
        self.assert_refused({1}, ["absent"], "kvconvert", absent, "--out", self.directory / "out")
        self.assert_refused({1}, ["absent"], "kvrun", absent, "--prompt", "x")
        self.assert_refused({1}, ["absent"], "kvvalidate", absent, STORIES)
        self.assert_refused({1}, ["absent"], "kvcalibrate", absent, "--out", self.directory / "out.h5")

    def test_a_gpu_that_is_not_there_is_refused(self):
        """By programs that compute on the CPU alone as a wrong option."""
        out, device = ("--out", self.directory / "out"), ("--device", "cuda:99")
        for code, program, *arguments in ((2, "kvexport", STORIES, "--conversion", self.directory / "conversion", *out),
                                          (2, "kvvalidate", STORIES, STORIES), (2, "kvcalibrate", STORIES, "--analyze", *out),
                                          (1, "kvcalibrate", STORIES, *out), (1, "kvfisher", STORIES, *out),
                                          (1, "kvconvert", STORIES, *out), (1, "kvrun", STORIES, "--prompt", "Once")):
            words = ["--device cuda:99", "this program computes on the CPU" if code == 2 else "GPU"]
            self.assert_refused({code}, words, program, *arguments, *device)


def nanoseconds_of_threads(process):
    """What each of its threads has computed."""
    times = []
    for task in Path(f"/proc/{process}/task").iterdir():
        with contextlib.suppress(OSError):  # it ended
            times.append(int(task.joinpath("schedstat").read_text().split()[0]))
    return times


class ThreadWaits(ProgramTest):
    """How long threads turn in loops follows what else runs, unless the user says."""

    UNSET = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    CORES = len(os.sched_getaffinity(0))

    def spin_count(self, **variables):
        shown = self.run_ok("kvrun", "--version", env=self.UNSET | {"OMP_DISPLAY_ENV": "verbose"} | variables).stderr
        return re.findall(r"GOMP_SPINCOUNT = '(\d+)'", shown)

    def test_libraries_start_once_with_what_the_user_says(self):
        self.assertEqual(len(self.spin_count()), 1)
        self.assertEqual(self.spin_count(GOMP_SPINCOUNT="77"), ["77"])
        self.assertEqual(self.spin_count(OMP_WAIT_POLICY="passive"), ["0"])

    def threads_beside_loops(self, environment):
        """How many threads a calibration beside busy loops has, once two of them have computed for a while."""
        loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(self.CORES)]
        out = self.directory / "calibration.h5"
        command = [BIN / "kvcalibrate", REFERENCE, "--num-sequences", "40", "--out", out, "--threads", "2", "--quiet"]
        program = subprocess.Popen(command, env=environment)
        try:
            while program.poll() is None:
                ran = nanoseconds_of_threads(program.pid)
                if sum(nanoseconds > 1e9 for nanoseconds in ran) >= 2:
                    return len(ran)
                time.sleep(0.02)
            self.fail("the calibration ended before two of its threads had computed for a second")
        finally:
            for process in (program, *loops):
                process.kill()
                process.wait()

    @unittest.skipIf(CORES == 1, "one core: threads never wait in loops")
    def test_are_short_beside_busy_loops(self):
        """OpenMP keeps them short while it manages more threads than there are cores."""
        left_alone = self.threads_beside_loops(self.UNSET | {"OMP_WAIT_POLICY": "passive"})
        self.assertEqual(self.threads_beside_loops(self.UNSET), left_alone + 2 + self.CORES)

    def test_arguments_and_directory_stay(self):
        out = self.directory / "a b"
        out.mkdir()
        link = out / "kv run"
        link.symlink_to(BIN / "kvrun")
        arguments = ["./kv run", os.path.relpath(STORIES, out), "--prompt", "Once  upon 'a' \"time\"", "--max-new-tokens", "4",
                     "--quiet"]
        texts = [subprocess.run(arguments, cwd=out, env=environment, capture_output=True, text=True, timeout=240,
                                preexec_fn=lambda: os.close(0))
                 for environment in (self.UNSET, self.UNSET | {"OMP_WAIT_POLICY": "passive"})]
        self.assertEqual(texts[0].returncode, 0, texts[0].stderr)
        self.assertEqual(texts[0].stdout, texts[1].stdout)
        refused = subprocess.run(["./kv run", "--no-such-option"], cwd=out, env=self.UNSET, capture_output=True, text=True)
        self.assertTrue(refused.stderr.startswith("kv run: error: "), refused.stderr)


def flat(settings, prefix=""):
    """{"a.b": value} of {"a": {"b": value}}."""
    found = {}
    for name, value in settings.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found


class Recorded(ProgramTest):
    """What a conversion records of options: their own settings, and no others."""

    # {method: ((options, {setting: value}), ...)}: what one case gives is at its default in the others.
    CASES = {
        "commonkv": (("--granularity group", {"granularity": "group"}), ("--unmerged plain --no-refit", {"unmerged": "plain", "refit": False})),
        "xkv": (("--value-ratio 2 --solver subspace", {"value_ratio": 2.0, "solver": "subspace"}), ("--joint", {"joint": True})),
        "minicache": (("--minicache-position 0.3", {"pairing.position": 0.3}), ("--minicache-retained 0.07", {"pairing.retained": 0.07})),
        "coded": (("--head-bits equal", {"coded.head_bits": "equal"}), ("", {})),
        "fusedkv": (("--mixed --distill-rate 0.02", {"fusion.mixed": True, "fusion.distill.rate": 0.02}),
                    ("--tune-layers --tune-rate 0.003 --distill-batch 3", {
                        "fusion.distill.tune_layers": True, "fusion.distill.tune_rate": 0.003, "fusion.distill.batch_sequences": 3})),
    }
    DEFAULTS = {"granularity": "token", "unmerged": "auto", "refit": True, "value_ratio": 1.5, "solver": "eigh", "joint": False,
                "pairing.position": 0.6, "pairing.retained": 0.05, "coded.head_bits": "free", "fusion.mixed": False,
                "fusion.distill.rate": 1e-3, "fusion.distill.tune_layers": False, "fusion.distill.tune_rate": 1e-5,
                "fusion.distill.batch_sequences": 1}
    ALSO = {"fusedkv": "--min-r2 -10 --distill-steps 1", "coded": "--scope head --kept-ratio 0.4", "commonkv": "--group 5 --window 4",
            "xkv": "--group 5 --window 4"}
    EFFORT = "--num-sequences 4 --seq-len 64 --sink 0 --calibration builtin --no-validate --force".split()

    def settings(self, *arguments):
        out = self.directory / "out"
        self.run_ok("kvconvert", STORIES, *self.EFFORT, *arguments, "--out", out)
        return flat(json.loads((out / "config.json").read_text(encoding="utf-8"))["kvconvert"]["settings"])

    def text_bytes(self, *arguments):
        """Bytes of the calibration text that a conversion begins with."""
        work = self.directory / f"work-{len(arguments)}"
        process = subprocess.Popen([BIN / "kvconvert", STORIES, "--kept-ratio", "0.25", "--calibration", DATA / "texts/tinystories_calibration.txt",
                                    "--work", work, "--out", self.directory / "never", "--quiet", *arguments])
        try:
            while not (work / "tokens.h5").exists():
                self.assertIsNone(process.poll())
                time.sleep(0.01)
            return (work / "tokens.h5").stat().st_size
        finally:
            process.kill()
            process.wait()

    def test_thorough_reads_more_text(self):
        self.assertGreater(self.text_bytes("--thorough"), 2 * self.text_bytes())  # four times the tokens, compressed

    def test_each_option_sets_its_own(self):
        for method, cases in self.CASES.items():
            recorded = [self.settings("--method", method, *self.ALSO.get(method, "").split(), *options.split()) for options, _ in cases]
            given = {name for _, values in cases for name in values}
            for (options, values), settings in zip(cases, recorded):
                with self.subTest(f"{method} {options}"):
                    expected = recorded[0] | {name: self.DEFAULTS[name] for name in given} | values
                    self.assertEqual(settings, expected)


class ConvertSettings(ProgramTest):
    def assert_usage(self, word, *arguments):
        self.assert_refused({2}, [word], "kvconvert", STORIES, "--out", self.directory / "out", *arguments)

    def test_values_out_of_range(self):
        self.assert_usage("--rank", "--rank", "0")
        self.assert_usage("--rank", "--rank", "2")
        self.assert_usage("--group", "--group", "0")
        self.assert_usage("--group", "--group", "-4")
        self.assert_usage("--kept-ratio", "--group", "4", "--kept-ratio", "0")
        self.assert_usage("--kept-ratio", "--group", "4", "--kept-ratio", "1.5")
        self.assert_usage("--num-sequences", "--group", "4", "--num-sequences", "0")
        self.assert_usage("--seq-len", "--group", "4", "--seq-len", "1")

    def test_options_of_another_computation_are_refused(self):
        out = ("--out", self.directory / "out.h5")
        for program, option, needed in (("kvcalibrate", "--attention", "--covariance"), ("kvcalibrate", "--group", "--covariance"),
                                        ("kvcalibrate", "--sink", "--covariance"), ("kvcalibrate", "--sample", "--analyze"),
                                        ("kvcalibrate", "--conversion", "--analyze"), ("kvfisher", "--group", "--metric"),
                                        ("kvfisher", "--sink", "--metric")):
            value = () if option == "--attention" else ("3",)
            self.assert_refused({2}, [option, needed], program, STORIES, *out, option, *value)
        for program in ("kvcalibrate", "kvfisher"):
            for option in ("--num-sequences", "--seq-len"):
                self.assert_refused({2}, ["--tokens", option], program, STORIES, *out, "--tokens", self.directory / "t.h5", option, "3")
                self.assert_refused({2}, ["--add", option], program, *out, "--add", "a.h5", "b.h5", option, "3")
        for program, statistics in (("kvcalibrate", "--covariance"), ("kvfisher", "--metric")):
            for option in ("--group", "--sink"):
                self.assert_refused({2}, ["--add", option], program, statistics, *out, "--add", "a.h5", "b.h5", option, "3")

    def test_analysis_does_not_replace_the_conversion_it_reads(self):
        conversion = self.directory / "conversion"
        conversion.mkdir()
        (conversion / "conversion.h5").write_bytes(b"")
        for named in (conversion, conversion / "conversion.h5"):
            self.assert_refused({1}, [str(conversion)], "kvcalibrate", STORIES, "--analyze", "--conversion", named, "--out", conversion, "--force")
        self.assertTrue((conversion / "conversion.h5").exists())

    def test_a_basis_that_the_runtime_refuses_is_not_forced(self):
        self.assert_refused({1}, ["--recompress-every 64", "or more"], "kvconvert", STORIES, "--method", "xkv", "--group", "2", "--kept-ratio", "0.7",
                            "--context", "512", "--later", "new-segment", "--recompress-every", "64", "--force", "--no-validate", "--out",
                            self.directory / "out")

    def test_advice_for_latents_can_be_followed(self):
        model, out = DATA / "zoo/deepseek_v2_lite", ("--out", self.directory / "out.h5")
        for program in ("kvcalibrate", "kvfisher"):
            self.assert_refused({1}, ["convert with --method xkv"], program, model, *out)

    def test_options_of_other_methods_are_refused_with_those_that_have_them(self):
        for method, option, word in (("minicache", ("--distill-steps", "3"), "fusedkv, fusedkv-lite, yoco or cla"),
                                     ("pca", ("--gauge", "pivot"), "commonkv or palu"), ("palu", ("--key-rank", "8"), "pca, xkv-static or xkv"),
                                     ("coded", ("--minicache", "inverted"), "minicache"), ("commonkv", ("--form", "full"), "coded"),
                                     ("coded", ("--block", "64"), "commonkv, pca, xkv-static or xkv")):
            self.assert_usage(f"{option[0]}: does not apply to the method {method}; leave it out, or pass {word}",
                              "--method", method, *option)
        self.assert_usage("the method commonkv", "--fusion", "matrices")
        for method in ("commonkv", "palu"):
            self.assert_usage(f"--rank-alloc energy: --method {method} shares ranks by Fisher information", "--method", method,
                              "--rank-alloc", "energy")

    def test_values_that_a_method_replaces_are_refused(self):
        for method, taken, *option in (("palu", "0", "--window", "64"), ("palu", "truncated", "--prefill", "exact"), ("palu", "1", "--group", "4"),
                                       ("palu", "none", "--merge", "mean"), ("fusedkv", "0", "--sink", "4"), ("cla", "1", "--group", "2"),
                                       ("minicache", "1", "--block", "16"), ("pca", "exact", "--prefill", "truncated"),
                                       ("xkv", "exact", "--prefill", "coded"), ("pca", "eigh", "--solver", "subspace"),
                                       ("xkv-static", "exact", "--later", "project"), ("pca", "1.5", "--value-ratio", "2.5")):
            self.assert_usage(f"{' '.join(option)}: the method {method} takes {taken} here; leave it out", "--method", method, *option)
        self.run_ok("kvconvert", STORIES, "--plan", "--method", "palu", "--window", "0", "--sink", "0", "--prefill", "truncated")

    def test_a_cache_that_keeps_less_than_its_target_is_said(self):
        target = (STORIES, "--out", self.directory / "out", "--kept-ratio", "0.9")
        process = self.run_ok("kvconvert", *target, "--num-sequences", "4", "--seq-len", "128", "--calibration", "builtin", "--no-validate")
        kept = re.search(r"more than 8 bits per coefficient; .* keeps (0\.2\d\d)", process.stderr)
        self.assertTrue(kept, process.stderr)
        planned = re.search(r"more than 8 bits per coefficient; .* keeps (\S+), or up to (\S+) with gains",
                            self.run_ok("kvconvert", *target, "--plan").stdout)
        self.assertLessEqual(float(planned[1]), float(kept[1]))
        self.assertLessEqual(float(kept[1]), float(planned[2]))
        self.assertLess(float(planned[1]), float(planned[2]))

    def test_work_is_neither_in_the_output_nor_in_the_checkpoint(self):
        for work in (self.directory / "out", self.directory / "out" / "work", STORIES / "work"):
            self.assert_usage("--work", "--work", work)

    def test_unknown_words_list_the_known(self):
        self.assert_usage("whitened", "--factor", "best")
        self.assert_usage("sensitivity", "--merge", "best")
        self.assert_usage("palu", "--method", "best")
        self.assert_usage("paper", "--group", "4", "--preset", "best")


class Plans(ProgramTest):
    def plan(self, model, *arguments):
        process = self.run_ok("kvconvert", CONFIGS / model, "--plan", "--group", "4", "--rank", "0.7", *arguments)
        self.assertEqual(process.stderr, "")
        return process.stdout

    def test_published_models_from_config_alone(self):
        before = listing(CONFIGS)
        # A latent at 0.7 of hidden_size against the keys and values of one layer.
        self.assertIn("1.40", self.plan("Llama-3.1-8B", "--rank-multiple", "1"))
        self.assertIn("1.40", self.plan("Mistral-7B-v0.2", "--rank-multiple", "1"))
        self.assertIn("0.35", self.plan("Llama-2-7B", "--rank-multiple", "1"))
        self.assertIn("2.80", self.plan("Llama-3.1-70B", "--rank-multiple", "1", "--kept-ratio", "0.75",
                                       "--tokens-in-flight", "65536"))
        self.assertIn("2.45", self.plan("Qwen2.5-7B", "--rank-multiple", "1", "--kept-ratio", "0.7"))
        self.assertEqual(listing(CONFIGS), before)

    def test_machine_readable(self):
        plan = json.loads(self.plan("Llama-3.1-8B", "--json"))
        self.assertIsInstance(plan, dict)
        self.assertGreater(len(plan), 3)

    def test_what_cannot_help_is_refused_with_numbers(self):
        self.assert_refused({1, 2}, ["--kept-ratio", "0.7"], "kvconvert", CONFIGS / "Qwen2.5-7B", "--plan",
                            "--group", "4", "--rank", "0.7", "--kept-ratio", "0.5")
        self.assert_refused({1, 2}, ["--group"], "kvconvert", CONFIGS / "Llama-3.1-8B", "--plan",
                            "--group", "1", "--rank", "0.7", "--kept-ratio", "0.5")
        self.assert_refused({1}, ["512 sink and window tokens stay exact", "use --sink 75, or"], "kvconvert", STORIES, "--plan", "--sink", "600")

    def test_what_the_conversion_refuses(self):
        self.assert_refused({1}, ["folded"], "kvconvert", REFERENCE, "--plan", "--kept-ratio", "0.25", "--export", "folded")
        self.assert_refused({2}, ["--factor-dtype", "auto"], "kvconvert", REFERENCE, "--plan", "--factor-dtype", "float16")

    def test_notes_are_said_once(self):
        for arguments in (("--method", "minicache"), ("--method", "pca"), ("--kept-ratio", "0.9")):
            notes = json.loads(self.run_ok("kvconvert", REFERENCE, "--plan", "--json", *arguments).stdout)["notes"]
            self.assertEqual(len(notes), len(set(notes)), notes)

    def test_converting_needs_weights(self):
        self.assert_refused({1}, ["safetensors"], "kvconvert", CONFIGS / "Llama-3.1-8B", "--group", "4",
                            "--rank", "0.7", "--out", self.directory / "out")

    def test_a_plan_writes_nothing_even_with_an_output_named(self):
        self.run_ok("kvconvert", REFERENCE, "--plan", "--group", "4", "--rank", "0.7", "--out", self.directory / "out")
        self.assertEqual(listing(self.directory), {})


if __name__ == "__main__":
    unittest.main()
