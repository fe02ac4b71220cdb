#!/usr/bin/env python3
"""Rejects includes that break the layers of docs/architecture.md; run as a test.

core <- model <- {calibrate, fisher, convert, export, runtime} <- validate; tasks of validate/ know no model. Stages never include each other:
they meet in files, whose formats core declares. Only kvconvert's pipeline and sweep compose all stages. The folders of runtime/ are
layers too: each includes those that RUNTIME lists before it.
"""

import pathlib
import re
import subprocess
import sys

BASE = {"core", "model"}
STAGES = {"calibrate", "fisher", "convert", "export", "runtime"}
# Lowest first; `runtime` itself is the engine.
RUNTIME = ("ops", "store", "policies", "compression", "attention", "memory", "reuse", "", "gpu", "program")
ALLOWED = {
    "core": {"core"},
    "model": BASE | {"model/kernels"},
    "model/kernels": {"model/kernels"},
    "calibrate": BASE | {"calibrate"},
    "fisher": BASE | {"fisher"},
    "convert": BASE | {"convert"},
    "export": BASE | {"export"},
    "runtime": BASE | {"runtime", "runtime/kernels"},
    "runtime/kernels": {"runtime/kernels"},
    "validate": BASE | STAGES | {"validate", "validate/tasks"},
    "validate/tasks": BASE | {"validate/tasks"},
}
EVERYTHING = set(ALLOWED)
COMPOSERS = re.compile(r"convert/(main|command_line|conversion_options|pipeline\w*|model_card|sweep/\w+)\.(h|cpp)")
# Programs only: libraries never see the command line.
COMMAND_LINE = re.compile(r"core/command\.(h|cpp)|\w+/(program/)?(main\.cpp|(\w+/)?command_line\.(h|cpp))|convert/(conversion|given)_options\.(h|cpp)")
TORCH = re.compile(r"(torch|ATen|c10)/")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]', re.MULTILINE)
SOURCES = {".h", ".cpp", ".cu", ".cuh"}


def component(path):
    """The layer a path belongs to, or None outside the layers."""
    parts = path.split("/")
    inner = "/".join(parts[:2])
    if len(parts) > 2 and inner in ALLOWED:
        return inner
    return parts[0] if parts[0] in ALLOWED else None


def runtime_layer(path):
    """The place in RUNTIME of a path below runtime/, or None of another."""
    top, _, rest = path.partition("/")
    folder = rest.partition("/")[0] if "/" in rest else ""
    return RUNTIME.index(folder) if top == "runtime" and folder in RUNTIME else None


def violations_of(path, text):
    own = component(path)
    allowed = EVERYTHING if COMPOSERS.fullmatch(path) else ALLOWED.get(own)
    found = []
    for bracket, included in INCLUDE.findall(text):
        if included == "torch/torch.h":
            found.append(f"{path}: includes <torch/torch.h>; <ATen/ATen.h> is enough and compiles in half the time")
        if own is None:
            continue
        target = component(included)
        if target is not None and target not in allowed:
            found.append(f"{path}: {own} may not include {target} ({included})")
        layer, included_layer = runtime_layer(path), runtime_layer(included)
        if layer is not None and included_layer is not None and included_layer > layer:
            found.append(f"{path}: runtime/{RUNTIME[layer]} may not include runtime/{RUNTIME[included_layer]} ({included})")
        if own == "core" and TORCH.match(included):
            found.append(f"{path}: core does not use LibTorch ({included})")
        if included.startswith("CLI/") and not COMMAND_LINE.fullmatch(path):
            found.append(f"{path}: only core/command, main.cpp and command_line see the command line ({included})")
        if bracket == '"' and target is None:
            found.append(f"{path}: project includes name the file from the root of the tree ({included})")
    return found


def tracked_files(root):
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=root, capture_output=True, text=True)
    if listed.returncode != 0:  # a copy without .git
        return sorted(str(p.relative_to(root)) for top in (*ALLOWED, "tests") for p in (root / top).rglob("*") if p.is_file())
    return sorted(path for path in listed.stdout.splitlines() if (root / path).is_file())


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    sources = [path for path in tracked_files(root) if pathlib.PurePath(path).suffix in SOURCES]
    if len(sources) < 20:
        sys.exit(f"{root}: only {len(sources)} sources found, is this the project's tree?")
    found = [line for path in sources for line in violations_of(path, (root / path).read_text(encoding="utf-8"))]
    print("\n".join(found) or f"{len(sources)} sources keep to the layers")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
