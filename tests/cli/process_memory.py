"""The KV cache as the system sees kvrun's process: resident memory behind a short and a long prompt. What tests of it share."""

import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from programs import ProgramTest, command, run

MIB = 1 << 20
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LAYERS, HEADS, HEAD_DIM, CHUNK = 8, 2, 128, 512
POSITIONS = 32768
SAMPLED = 12 * MIB  # a process's largest sizes may be missed between two looks at it
CALIBRATION = ("--no-validate", "--quiet", "--seq-len", "64")
CONVERSIONS = {
    "coded head": ("--method", "coded", "--scope", "head", "--kept-ratio", "0.25", "--metric", "none", "--num-sequences", "18"),
    "coded layer": ("--method", "coded", "--scope", "layer", "--kept-ratio", "0.25", "--metric", "none", "--num-sequences", "36"),
    "coded group": ("--method", "coded", "--scope", "group", "--group", "2", "--kept-ratio", "0.25", "--metric", "none",
                    "--num-sequences", "70"),
    "commonkv": ("--method", "commonkv", "--group", "4", "--rank", "0.7", "--num-sequences", "4"),
    "pca": ("--method", "pca", "--group", "4", "--kept-ratio", "0.25", "--num-sequences", "4"),
    "xkv": ("--method", "xkv", "--group", "4", "--kept-ratio", "0.25", "--num-sequences", "4"),
    "minicache": ("--method", "minicache"),
    "fusedkv": ("--method", "fusedkv", "--num-sequences", "4", "--min-r2", "-1e9"),
}
OPTIONS = {"int8": ("--kv-dtype", "int8"), "int4": ("--kv-dtype", "int4"), "int2": ("--kv-dtype", "int2"),
           "zeromerge": ("--policy", "zeromerge:budget=512"), "snapkv": ("--policy", "snapkv:budget=512")}


def bytes_of(pid, field):
    """RssAnon is VmRSS less pages of files (programs, weights), which the system drops and reads again as it likes."""
    text = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(re.search(field + r":\s+(\d+) kB", text).group(1)) * 1024


def angle_bytes(tokens):
    """Kernels that turn keys read angles of all positions: not the cache's, and an eighth of them is spare."""
    return tokens * HEAD_DIM * 4 * 9 // 8


def step_bytes(model):
    """A step over latents takes up to 2048 of them at a time: them, their keys, and what a product packs of both."""
    plan = json.loads((model / "config.json").read_text(encoding="utf-8")).get("kvconvert", {}).get("plan", {})
    ranks = [group["rank"] for group in plan.get("groups", [])]
    return 2 * 2 * 2048 * (max(ranks) + HEADS * HEAD_DIM) if ranks else 0


class MemoryTest(ProgramTest):
    short, long = 512, 16384  # tokens of the prompts that are compared

    @classmethod
    def setUpClass(cls):
        cls.models = pathlib.Path(tempfile.mkdtemp(prefix="kvc-cli-"))
        cls.addClassCleanup(shutil.rmtree, cls.models)
        cls.model = cls.models / "model"
        shape = {"layers": LAYERS, "hidden": HEADS * HEAD_DIM, "intermediate": 512, "heads": HEADS, "kv-heads": HEADS,
                 "max-position": POSITIONS, "shards": 1}
        words = [str(word) for name, value in shape.items() for word in (f"--{name}", value)]
        subprocess.run([sys.executable, ROOT / "bench" / "make_random_checkpoint.py", cls.model, *words], check=True)

    def prompt(self, tokens):
        path = self.directory / f"{tokens}.json"
        generator = random.Random(1)
        path.write_text(json.dumps([1] + [generator.randrange(3, 500) for _ in range(tokens - 1)]))
        return path

    def arguments(self, model, tokens, *options):
        return (model, "--ids", self.prompt(tokens), "--max-new-tokens", 64, "--ignore-eos", "--temperature", 1, "--threads", 2,
                "--prefill-chunk", CHUNK, *options)

    def measure(self, model, tokens, options):
        """(resident bytes while it generates, their peak, bytes of the cache, their peak)"""
        process = subprocess.Popen(command("kvrun", *self.arguments(model, tokens, *options), "--stats"),
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.kill)
        self.assertTrue(process.stdout.read(8))  # of the first new tokens: the prompt was read
        generating, peak = self.stopped_at(process)
        errors = process.communicate(timeout=240)[1].decode()
        self.assertEqual(process.returncode, 0, errors)
        found = re.search(r"kv +(\d+) bytes .* peak (\d+)", errors)
        return generating, peak, int(found.group(1)), int(found.group(2))

    def stopped_at(self, process):
        """(resident bytes of a process at this moment, their peak)"""
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        now, most = bytes_of(process.pid, "RssAnon"), bytes_of(process.pid, "VmHWM")
        process.send_signal(signal.SIGCONT)
        return now, most

    def check(self, name, model, options=()):
        """Prints a line of docs/benchmarks.md's table: MiB by the formula, in the process, and at its peak."""
        short, long = (self.measure(model, tokens, options) for tokens in (self.short, self.long))
        grown, grown_peak, cache, pool_peak = (after - before for before, after in zip(short, long))
        plan = json.loads(self.run_ok("kvrun", *self.arguments(model, self.long, *options), "--plan", "--json").stdout)
        planned = max(plan["reading_bytes"], plan["end_bytes"])
        angles = angle_bytes(self.long - self.short)
        print(f"| {name} | {(cache + angles) / MIB:.1f} | {grown / MIB:.1f} | {grown_peak / MIB:.1f} | "
              f"{plan['process_bytes'] / MIB:.0f} | {long[1] / MIB:.0f} |", flush=True)
        with self.subTest(name, grown=grown / MIB, peak=grown_peak / MIB, cache=cache / MIB, pool=pool_peak / MIB):
            self.assert_as_formula(grown, cache, angles, step_bytes(model))
            self.assertLessEqual(long[3], planned)
            self.assertGreater(long[3], 0.95 * planned)
            self.assertLess(abs(long[1] - plan["process_bytes"]), 0.05 * plan["process_bytes"])
            # Beside the cache, a prompt has the residual stream and one layer's exact rows.
            read = (self.long - self.short) * HEADS * HEAD_DIM * 2 * 3
            self.assertLess(grown_peak, 1.05 * (pool_peak + angles + 1.25 * read) + 10 * MIB)

    def assert_as_formula(self, grown, cache, angles, step=0):
        self.assertLess(grown, 1.03 * (cache + angles) + step + 4 * MIB)
        self.assertGreater(grown, 0.97 * cache - 4 * MIB)

    def convert(self, name):
        out = self.models / name.replace(" ", "-")
        if not out.exists():
            self.run_ok("kvconvert", self.model, "--out", out, *CALIBRATION, *CONVERSIONS[name])
        return out

    def measure_batch(self, model, lengths):
        """(resident bytes while it generates, bytes of the caches) of prompts that are read together"""
        path = self.directory / "batch.json"
        path.write_text(json.dumps([json.loads(self.prompt(tokens).read_text()) for tokens in lengths]))
        arguments = (model, "--ids", path, *self.arguments(model, 2)[3:], "--json")
        process = subprocess.Popen(command("kvrun", *arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        self.addCleanup(process.kill)
        samples = self.sampled(process, "RssAnon")
        report = json.loads(process.communicate(timeout=240)[0])
        self.assertEqual(process.returncode, 0)
        # Nothing is printed before the end, but more than half of the time goes to generating.
        return statistics.median(samples[len(samples) // 2:]), sum(kv["bytes"] for kv in report["kv"])

    def check_batches(self, name, *lengths):
        """Prompts of `lengths` tokens, the fewer first."""
        model = self.convert(name)
        short, long = (self.measure_batch(model, tokens) for tokens in lengths)
        self.assert_as_formula(long[0] - short[0], long[1] - short[1], angle_bytes(max(lengths[1]) - max(lengths[0])))

    def measure_turns(self, model, words):
        """(resident bytes once a second turn was read, bytes of the cache, its tokens)"""
        template = self.directory / "template.jinja"
        template.write_text("{{ bos_token }}{% for m in messages %}{{ m.role[0] ~ ':' ~ m.content ~ '\n' }}{% endfor %}"
                            "{% if add_generation_prompt %}a:{% endif %}")
        # Without answers, whose texts may have other ids when they are read again.
        arguments = ("--chat-template", template, "--max-new-tokens", 0, "--threads", 2, "--prefill-chunk", CHUNK)
        process = subprocess.Popen(command("kvrun", model, "--chat", *arguments, "--json"), stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.addCleanup(process.communicate)
        for _ in range(2):
            process.stdin.write(b" once" * (words // 2) + b"\n")
            process.stdin.flush()
            turn = json.loads(process.stdout.readline())
        self.assertLess(turn["read_tokens"], turn["prompt_tokens"])
        now = bytes_of(process.pid, "RssAnon")
        process.communicate(timeout=240)
        return now, turn["kv"]["bytes"], turn["kv"]["tokens"]

    def check_later_turns(self, name):
        model = self.convert(name)
        short, long = (self.measure_turns(model, tokens // 2) for tokens in (self.short, self.long))
        self.assert_as_formula(long[0] - short[0], long[1] - short[1], angle_bytes(long[2] - short[2]))

    def check_fits_compressed(self, tokens):
        """A text of `tokens` fits a limit coded that it does not fit plain. In float32, because a limit may change how products round,
        which draws other tokens in 16 bits."""
        arguments = {name: self.arguments(model, tokens, "--dtype", "float32") for name, model in
                     (("coded", self.convert("coded head")), ("plain", self.model))}
        needed, text = self.most_data(*arguments["coded"])
        limit = needed + SAMPLED
        self.assertGreater(self.most_data(*arguments["plain"])[0], limit + SAMPLED)

        def run_limited(name):
            return run("kvrun", *arguments[name], "--quiet", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)))
        coded, plain = run_limited("coded"), run_limited("plain")
        self.assertEqual((coded.returncode, coded.stderr, coded.stdout), (0, "", text))
        self.assertEqual((plain.returncode, plain.stdout), (1, ""))
        self.assertRegex(plain.stderr, r"^kvrun: error: KV cache: no memory for \d+ more bytes: .*; shorten the text, or store less .*\n$")

    def most_data(self, *arguments):
        """(the most private memory that the process maps while it runs, which RLIMIT_DATA limits, what it prints)"""
        process = subprocess.Popen(command("kvrun", *arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(process.kill)
        return max(self.sampled(process, "VmData")), process.communicate()[0]

    def sampled(self, process, field):
        """What the system says of a process until it ends."""
        samples = []
        while process.poll() is None:
            try:
                samples.append(bytes_of(process.pid, field))
            except (AttributeError, FileNotFoundError, ProcessLookupError):  # it ends
                break
            time.sleep(0.005)
        return samples

