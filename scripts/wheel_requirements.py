#!/usr/bin/env python3
"""Prints what a wheel requires here, one requirement a line: wheel_requirements.py WHEEL [--without NAME ...]"""

import argparse
import email
import zipfile

from pip._vendor.packaging.requirements import Requirement


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel")
    parser.add_argument("--without", nargs="*", default=[], metavar="NAME")
    options = parser.parse_args()
    with zipfile.ZipFile(options.wheel) as wheel:
        path = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(wheel.read(path))
    for text in metadata.get_all("Requires-Dist", []):
        requirement = Requirement(text)
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if wanted and requirement.name not in options.without:
            requirement.marker = None
            print(requirement)


if __name__ == "__main__":
    main()
