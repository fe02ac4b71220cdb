#!/usr/bin/env python3
"""Rejects what ties the tree to one machine (absolute home and work paths, hosts of package registries), unfinished work,
sentences that start with "Of", scripts that cannot be run by their names, and packages that were downloaded; run as a test."""

import os
import pathlib
import re
import sys

from check_layering import tracked_files

MACHINE_PATH = re.compile(r"(?<![\w.$}/-])/(?:work|root|home)/\w")
REGISTRY = re.compile(r"\b(?:pypi\.org|pythonhosted\.org|download\.pytorch\.org|(?:deb|security)\.debian\.org|archive\.ubuntu\.com)\b")
UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX)\b")
INVERTED = re.compile(r"(?:^|(?://|#|\. )\s*)Of [a-z]")
TEXT = {".h", ".cpp", ".cu", ".cuh", ".py", ".sh", ".cmake", ".txt", ".md", ".json", ".env", ""}
EXEMPT = {"tests/checks/check_tree.py", "tests/checks/checks_test.py"}
DATA = "tests/data/"
PACKAGES = {".whl", ".deb", ".gz", ".xz", ".zip", ".tar"}


def violations_of(path, text):
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        for pattern, what in ((MACHINE_PATH, "a path of one machine"), (REGISTRY, "the host of a registry"),
                              (UNFINISHED, "unfinished work"), (INVERTED, "a sentence that starts with its object")):
            match = pattern.search(line)
            if match:
                found.append(f"{path}:{number}: {what} ({match.group()})")
    return found


def is_script_without_leave(path):
    """Does a file name its interpreter and is not executable?"""
    with path.open("rb") as file:
        return file.read(2) == b"#!" and not os.access(path, os.X_OK)


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    tracked = tracked_files(root)
    checked = [path for path in tracked if pathlib.PurePath(path).suffix in TEXT
               and path not in EXEMPT and not path.startswith(DATA)]
    found = [line for path in checked for line in violations_of(path, (root / path).read_text(encoding="utf-8"))]
    found += [f"{path}: a script that is not executable; chmod +x" for path in checked if is_script_without_leave(root / path)]
    found += [f"{path}: a package; fetch it where it is needed" for path in tracked if pathlib.PurePath(path).suffix in PACKAGES]
    print("\n".join(found) or f"{len(checked)} files keep to the rules of the tree")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
