#!/usr/bin/env python3
"""Compares engines with kvrun on a checkpoint, its folded export, and its coded conversion; scripts/check_engines.sh calls it.

check_engines.py [CHECKPOINT] [--engines NAME ...] [--forms original|folded|coded ...] [--calibration FILE] [--text FILE]
                 [--json FILE] [--work DIR]

Logits are those of every token of some prompts, in float32. Their difference is taken after log-softmax, so that engines that
give log-probabilities compare too, and divided by the standard deviation of kvrun's. Greedy agreement is the share of tokens,
counted from the start of each text, that equal kvrun's. Tokens per GiB are what the engine itself reports for a cache in the
checkpoint's dtype. An engine that cannot be installed is reported. One that fails, or whose difference or agreement misses
the bounds, makes the exit code 1.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys

import numpy
from tokenizers import Tokenizer

from comparison import BOUNDS, EngineError, compare, table, verdict
from engine_table import ENGINES, REFERENCE
from environments import FOLDER, ROOT, InstallError

DATA = ROOT / "tests" / "data"
LENGTHS = (7, 31, 64, 150, 300)  # tokens of the prompts
TOKENS = 32  # that each prompt is continued with
CAPACITY_TOKENS = 992  # of the text in the cache whose bytes are counted
CONVERSIONS = {
    "folded": ("--group", 4, "--rank", 0.7, "--export", "folded"),
    "coded": ("--kept-ratio", 0.25, "--form", "rotated", "--for", "vllm"),
}
FORMS = ("original", *CONVERSIONS)
FEW_TOKENS = ("--num-sequences", 10, "--seq-len", 512)  # of calibration: engines are compared, not methods


class Checks:
    """Runs engines on checkpoints, with files under `work`."""

    def __init__(self, options):
        self.options = options
        self.work = options.work
        self.work.mkdir(parents=True, exist_ok=True)
        self.checkpoints = {"original": options.checkpoint}
        tokenizer = Tokenizer.from_file(str(options.checkpoint / "tokenizer.json"))
        special, ids = tokenizer.encode("").ids, []
        for text in options.text.read_text(encoding="utf-8").split("<|endoftext|>"):
            ids += tokenizer.encode(text.strip(), add_special_tokens=False).ids
        if len(ids) < len(LENGTHS) * max(LENGTHS):
            raise SystemExit(f"check_engines: error: {options.text}: {len(ids)} tokens, at least {len(LENGTHS) * max(LENGTHS)} needed")
        step = len(ids) // len(LENGTHS)
        self.prompts = [(special + ids[step * i:])[:length] for i, length in enumerate(LENGTHS)]
        self.capacity_ids = (special + ids)[:CAPACITY_TOKENS]
        self.ends = end_tokens(options.checkpoint)

    def convert(self, kind):
        """Writes WORK/`kind`, a conversion of the checkpoint."""
        out = self.work / kind
        print(f"kvconvert {' '.join(map(str, CONVERSIONS[kind]))}", file=sys.stderr, flush=True)
        program = pathlib.Path(os.environ.get("KVCONVERT_BIN", ROOT / "build/cpu/bin")) / "kvconvert"
        command = [program, self.options.checkpoint, *CONVERSIONS[kind], *FEW_TOKENS, "--calibration", self.options.calibration,
                   "--out", out, "--force", "--no-validate", "--quiet"]
        if subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL).returncode:
            sys.exit(f"check_engines: error: {self.options.checkpoint}: not converted; kvconvert says why")
        self.checkpoints[kind] = out

    def run(self, engine, kind, capacity=False):
        """The answer of run_engine.py. Raises InstallError or EngineError."""
        interpreter = engine.interpreter()
        name = f"{engine.name}-{kind}" + ("-capacity" if capacity else "")
        print(f"{engine.title}: {kind}" + (", tokens per GiB" if capacity else ""), file=sys.stderr, flush=True)
        request, answer, log = (self.work / f"{name}.{end}" for end in ("json", "npz", "log"))
        answer.unlink(missing_ok=True)
        request.write_text(json.dumps({"prompts": self.prompts, "tokens": TOKENS,
                                       "capacity": self.capacity_ids if capacity else None}), encoding="utf-8")
        command = [interpreter, pathlib.Path(__file__).with_name("run_engine.py"), engine.name, self.checkpoints[kind], request, answer]
        try:
            code = exit_code(command, log, self.options.timeout)
        except subprocess.TimeoutExpired:
            raise EngineError(f"not done after {self.options.timeout:.0f} seconds, --timeout (see {log})") from None
        if code or not answer.exists():
            lines = log.read_text(errors="replace").strip().splitlines()
            raise EngineError(f"exit code {code}: {lines[-1] if lines else 'no output'} (see {log})")
        with numpy.load(answer) as arrays:
            return dict(arrays)

    def row(self, engine, kind, expected):
        row = {"engine": engine.title, "version": engine.version, "checkpoint": kind, "max_logit_difference": None,
               "greedy_agreement": None, "tokens_per_gib": None, "not_run": None, "error": None}
        try:
            if engine is not REFERENCE:
                row |= compare(self.run(engine, kind), expected, self.ends)
                row["error"] = verdict(row, BOUNDS[kind]) or None
            if engine.coded and kind != "folded":
                row["tokens_per_gib"] = int(self.run(engine, kind, capacity=True)["tokens_per_gib"])
        except InstallError as error:
            row["not_run"] = str(error)
        except EngineError as error:
            row["error"] = str(error)
        return row


def end_tokens(checkpoint):
    """eos_token_id of generation_config.json or config.json."""
    for name in ("generation_config.json", "config.json"):
        if (checkpoint / name).exists():
            end = json.loads((checkpoint / name).read_text(encoding="utf-8")).get("eos_token_id")
            if end is not None:
                return set(end) if isinstance(end, list) else {end}
    return set()


def exit_code(command, log, timeout):
    """Runs a command; where it does not end, or this program is interrupted, its own processes are ended too."""
    with log.open("w") as output:
        process = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                   env=engine_environment(), start_new_session=True)
        try:
            return process.wait(timeout)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise


def engine_environment():
    others = os.environ.get("PYTHONPATH")
    kept = {name: value for name, value in os.environ.items() if name != "VLLM_CPU_KVCACHE_SPACE"}  # it overrides the driver's
    return kept | {"PYTHONPATH": f"{ROOT / 'python'}" + (f":{others}" if others else ""), "HF_HUB_OFFLINE": "1",
                         "TOKENIZERS_PARALLELISM": "false", "OMP_WAIT_POLICY": "passive"}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=pathlib.Path, nargs="?", default=DATA / "reference-llama")
    parser.add_argument("--engines", nargs="+", choices=[engine.name for engine in ENGINES], metavar="NAME",
                        default=[engine.name for engine in ENGINES],
                        help=f"some of: {', '.join(engine.name for engine in ENGINES)} (default: all)")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS, help="of the checkpoint (default: all)")
    parser.add_argument("--calibration", type=pathlib.Path, default=DATA / "texts" / "tinystories_calibration.txt")
    parser.add_argument("--text", type=pathlib.Path, default=DATA / "texts" / "tinystories_heldout.txt", help="what prompts are of")
    parser.add_argument("--work", type=pathlib.Path, default=FOLDER / "check", help="conversions, answers and logs")
    parser.add_argument("--json", type=pathlib.Path, help="the report (default: WORK/engines.json)")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds that an engine may take for a checkpoint")
    return parser.parse_args()


def main():
    options = parse_arguments()
    checks = Checks(options)
    rows = []
    for kind in options.forms:
        if kind in CONVERSIONS:
            checks.convert(kind)
        try:
            expected = checks.run(REFERENCE, kind)
        except (EngineError, InstallError) as error:
            sys.exit(f"check_engines: error: {kind}: {REFERENCE.title}, which the others are compared with: {error}")
        for engine in (REFERENCE, *(engine for engine in ENGINES if engine.name in options.engines)):
            if kind != "coded" or engine.coded:
                rows.append(checks.row(engine, kind, expected))
    report = options.json or checks.work / "engines.json"
    report.write_text(json.dumps({
        "bounds": {kind: dataclasses.asdict(bounds) for kind, bounds in BOUNDS.items()},
        "conversions": {kind: " ".join(map(str, arguments)) for kind, arguments in CONVERSIONS.items()},
        "prompt_tokens": LENGTHS, "generated_tokens": TOKENS, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    print(table(rows))
    print(f"wrote {report}", file=sys.stderr)
    return 1 if any(row["error"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
