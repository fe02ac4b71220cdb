#!/usr/bin/env python3
"""Measures the rows of a paper's main table on a checkpoint, and prints them beside the published ones.

PAPER.sh [MODEL] [DATA...] [options]

MODEL is a HuggingFace directory (default: the bundled reference checkpoint, too small for long tasks: its rows are divergence and
recall of facts). DATA are files: .txt is calibration text (default of the bundled checkpoint: the bundled stories); .json and .jsonl are
what tasks read (docs/tasks.md). Every row is converted, compared with the original by kvvalidate, and kept in --out, where an interrupted
run with the same files and programs goes on. Published rows are of other models and data than yours: compare the order of methods,
not the numbers.
"""
import argparse
import errno
import fcntl
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

from papers import PAPERS

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUNDLED = ROOT / "tests/data/reference-llama"
STORIES = ROOT / "tests/data/texts"
KEEP_GENERATED = ("xkv", "minicache")  # methods that compress prompts alone
MOST_ROW_TOKENS = 2048  # of the text whose divergence is measured
FILE_TASKS = {"qa_1", "qa_2", "longbench"}  # require files


def parse_arguments():
    paper, words = sys.argv[1], sys.argv[2:]  # the first is PAPER.sh's
    parser = argparse.ArgumentParser(prog=f"{paper}.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=pathlib.Path, default=BUNDLED)
    parser.add_argument("data", nargs="*", type=pathlib.Path)
    parser.add_argument("--tasks", help="instead of the paper's; none: divergence alone")
    parser.add_argument("--length", type=int, help="tokens of a prompt (default: the paper's, at most the model's context)")
    parser.add_argument("--samples", type=int, default=20, help="prompts of each task")
    parser.add_argument("--out", type=pathlib.Path, help="directory of results (default: reproduce-PAPER-MODEL)")
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path(os.environ.get("KVC_BIN_DIR", ROOT / "build/release/bin")))
    options = parser.parse_args(words, argparse.Namespace(paper=paper))
    for path in (options.model / "config.json", *options.data, options.bin / "kvconvert"):
        if not path.exists():
            parser.error(f"{path}: no such file" + ("; run scripts/quickstart.sh to build, or pass --bin" if path.name == "kvconvert" else ""))
    options.out = options.out or pathlib.Path(f"reproduce-{options.paper}-{options.model.resolve().name}")
    return options


def context_of(model):
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    return (config.get("text_config") or config).get("max_position_embeddings", 2048)


def slug(name):
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")


class Rows:
    """Measured rows of a paper, each kept as a file."""

    def __init__(self, options):
        self.options, self.paper = options, PAPERS[options.paper]
        self.bundled = options.model.resolve() == BUNDLED
        context = context_of(options.model)
        self.length = options.length or min(self.paper["length"], context)  # of tasks' prompts
        self.row_length = min(self.length, context, MOST_ROW_TOKENS)
        self.hashes = {}
        self.texts = [path for path in options.data if path.suffix == ".txt"] or ([STORIES / "tinystories_calibration.txt"] if self.bundled else [])
        self.files = [path for path in options.data if path.suffix != ".txt"]
        options.out.mkdir(parents=True, exist_ok=True)
        self.lock = os.open(options.out, os.O_RDONLY)  # until the process ends
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            sys.exit(f"{options.out}: another run writes its rows there; wait for it, or give another --out")

    def tasks(self):
        if self.options.tasks:
            return [] if self.options.tasks == "none" else self.options.tasks.split(",")
        return [] if self.bundled else [task for task in self.paper["tasks"] if self.files or task not in FILE_TASKS]

    def run(self, program, *arguments):
        command = [str(word) for word in (self.options.bin / program, *arguments)]
        print("+", " ".join(command), file=sys.stderr)
        process = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        lines = process.stderr.strip().splitlines() or [f"exit code {process.returncode}"]
        if process.returncode in (1, 2) and os.strerror(errno.ENOSPC) not in lines[-1]:
            raise RuntimeError(lines[-1].removeprefix(f"{program}: error: "))
        if process.returncode != 0:
            sys.exit(f"{program}: exit code {process.returncode}: {lines[-1]}")
        return process.stdout

    def validate(self, candidate, tasks, *options):
        words = ["--seq-len", self.row_length]
        words += ["--tasks", ",".join(tasks), "--task-length", self.length, "--task-samples", self.options.samples] if tasks else []
        words += ["--task-text", *self.files] if tasks and self.files else []
        words += ["--text", STORIES / "tinystories_heldout.txt", "--recall", 20] if self.bundled else []
        return json.loads(self.run("kvvalidate", self.options.model, candidate, *words, *options, "--json", "--quiet"))

    def measure(self, name, settings):
        """kvvalidate's report; settings: options of kvconvert, or a policy."""
        if isinstance(settings, dict):
            tasks, alike = self.tasks(), self.length == self.row_length
            report = self.validate_policy(settings, self.row_length, tasks if alike else [])
            return report if alike or not tasks else {**report, "tasks": self.validate_policy(settings, self.length, tasks)["tasks"]}
        directory = self.options.out / f"{slug(name)}-converted"
        calibration = ["--calibration", *self.texts] if self.texts else []
        shutil.rmtree(directory, ignore_errors=True)  # of an interrupted run
        try:
            self.run("kvconvert", self.options.model, "--out", directory, "--context", self.length, *settings, *calibration,
                     "--no-validate", "--quiet")
            return self.validate(directory, self.tasks())
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def validate_policy(self, settings, length, tasks):
        budget = max(1, round(settings["share"] * length))
        return self.validate(self.options.model, tasks, "--policy", f"{settings['policy']}:budget={budget}")

    def hash(self, path):
        if path not in self.hashes:
            self.hashes[path] = hashlib.sha256(path.read_bytes()).hexdigest()
        return self.hashes[path]

    def row(self, name, settings):
        programs = [self.hash(self.options.bin / program) for program in ("kvconvert", "kvvalidate")]
        weights = sorted(self.options.model.glob("*.safetensors"))
        others = sorted({*self.options.model.glob("*.json"), *self.options.model.glob("*.jinja"), *self.options.model.glob("*.model"), *self.texts})
        key = {"settings": settings, "tasks": self.tasks(), "length": self.length, "row_length": self.row_length,
               "samples": self.options.samples, "data": [self.hash(path) for path in self.options.data], "model": str(self.options.model.resolve()),
               "weights": [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in weights], "programs": programs,
               "others": [self.hash(path) for path in others]}
        file = self.options.out / f"{slug(' '.join([name, *(settings if isinstance(settings, list) else [])]))}.json"
        if file.exists():
            kept = json.loads(file.read_text(encoding="utf-8"))
            if kept["key"] == key:
                return kept["report"]
        try:
            report = self.measure(name, settings)
        except RuntimeError as error:
            return {"refused": str(error)}
        partial = file.with_suffix(".partial")
        partial.write_text(json.dumps({"key": key, "report": report}), encoding="utf-8")
        partial.rename(file)
        return report


LEAST_PLAUSIBLE_RATIO = 0.98  # of perplexities, within the error of most texts


def measured_cells(report):
    kld = report["continuation"]["kl_divergence"]
    cells = [f"{report['kept_ratio']:.3f}", f"{kld['mean']:.3g}", f"{report['continuation']['perplexity_ratio']:.4f}"]
    if report["recall"]:
        cells.append(f"{report['recall']['candidate_accuracy']:.0%}")
    return cells + [f"{task['candidate']['mean']:.1f}" for task in report["tasks"] or []]


def print_table(head, rows):
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for row in (head, *rows):
        print("  ".join(cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))).rstrip())


def print_measured(rows, reports):
    good = [report for _, report in reports if "refused" not in report]
    has_tasks = any(report["tasks"] for report in good)
    print(f"Measured here: {rows.options.model}, divergence of rows of {rows.row_length} tokens" +
          (f", scores of tasks at {rows.length} tokens" if has_tasks else ""))
    if good:
        head = ["", "kept_ratio", "KL divergence", "perplexity ratio"] + (["recall"] if good[0]["recall"] else [])
        head += [task["task"] for task in good[0]["tasks"] or []]
        first = ["full cache", "1.000", "0", "1.0000"] + ([f"{good[0]['recall']['reference_accuracy']:.0%}"] if good[0]["recall"] else [])
        first += [f"{task['reference']['mean']:.1f}" for task in good[0]["tasks"] or []]
        print_table(head, [first, *([name, *measured_cells(report)] for name, report in reports if "refused" not in report)])
        if any(method in settings for _, settings in rows.paper["rows"] for method in KEEP_GENERATED):
            print("kept_ratio is of whole rows. Their second half is scored token by token, and xKV and MiniCache keep it exactly: a longer "
                  "prompt keeps less.")
        if any(report["continuation"]["perplexity_ratio"] < LEAST_PLAUSIBLE_RATIO for report in good):
            print("A perplexity ratio below 1 is no gain: the model predicts this text worse from more context. Compare divergences.")
    for name, report in reports:
        if "refused" in report:
            print(f"{name}: {report['refused']}")


def print_published(paper):
    for model, published in paper["published"].items():
        print(f"\nPublished ({paper['title']}; {paper['note']}): {model}")
        print_table(["", "kept_ratio", *paper["columns"]],
                    [[name, "" if kept is None else f"{kept:.3f}", *(f"{value:g}" for value in values)] for name, kept, values in published])


def measure_reuse(rows):
    """SemShareKV: prompts that are read with a similar one's cache."""
    model = [] if rows.bundled else [rows.options.model]
    text = ["--text", rows.texts[0]] if rows.texts else []
    lengths = [str(tokens) for tokens in (500, 1000, 2000, 5000) if tokens + 64 <= rows.length] or [str(rows.length // 2)]
    command = [sys.executable, ROOT / "bench/bench_reuse.py", *model, "--kvrun", rows.options.bin / "kvrun", *text, "--tokens", *lengths]
    subprocess.run([str(word) for word in command], check=True)


def main():
    options = parse_arguments()
    rows = Rows(options)
    if options.paper == "semsharekv":
        measure_reuse(rows)
    else:
        reports = [(name, rows.row(name, settings)) for name, settings in rows.paper["rows"]]
        print_measured(rows, reports)
        if all("refused" in report for _, report in reports):
            sys.exit("no row could be measured")
    print_published(rows.paper)


if __name__ == "__main__":
    main()
