#!/usr/bin/env python3
"""Rejects two types of one name in the same namespace: a program that links both would use the functions of one for the other
(the compiler sees one file at a time, and the linker keeps the first). Run as a test."""

import collections
import pathlib
import re
import sys

from check_layering import tracked_files

COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)
NAMESPACE = re.compile(r"\bnamespace\s+([\w:]*)\s*$")
TYPE = re.compile(r"\b(?:struct|class|union|enum(?:\s+(?:class|struct))?)\s+([A-Za-z_]\w*)\s*(?:final\s*)?(?::[^:].*)?$", re.DOTALL)


def types_of(text):
    """Qualified names of the types that `text` defines outside unnamed namespaces, functions and other types."""
    text = re.sub(r"^[ \t]*#.*$", "", COMMENT_OR_STRING.sub("", text), flags=re.MULTILINE)
    names, scopes, head = [], [], ""
    for character in text:
        if character == "{":
            namespace, defined = NAMESPACE.search(head), TYPE.search(head)
            if namespace:
                scopes.append(namespace.group(1))
            else:
                if defined and None not in scopes and "" not in scopes:
                    names.append("::".join([*scopes, defined.group(1)]))
                scopes.append(None)
            head = ""
        elif character in ";}":
            if character == "}" and scopes:
                scopes.pop()
            head = ""
        else:
            head += character
    return names


def violations_of(texts):
    """`texts`: contents by path."""
    places = collections.defaultdict(list)
    for path, text in texts.items():
        for name in types_of(text):
            places[name].append(path)
    return [f"{name}: defined in {' and '.join(paths)}" for name, paths in sorted(places.items()) if len(paths) > 1]


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    paths = [path for path in tracked_files(root) if path.endswith((".h", ".cpp", ".cu", ".cuh")) and (root / path).exists()]
    found = violations_of({path: (root / path).read_text(encoding="utf-8") for path in paths})
    for violation in found:
        print(violation)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
