"""Measurements that a benchmark keeps in a directory, so that a run that was stopped goes on."""

import json
import sys


def check_settings(directory, settings):
    """Notes what the measurements of a directory depend on. Ends the program where it holds those of other settings."""
    file = directory / "settings.json"
    stated = json.loads(json.dumps(settings, default=str))
    if file.exists():
        kept = json.loads(file.read_text(encoding="utf-8"))
        other = [name for name in sorted({*kept, *stated}) if kept.get(name) != stated.get(name)]
        if other:
            sys.exit(f"{directory}: holds measurements with another {', '.join(other)}; pass another --out, or remove it")
    directory.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(stated, indent=1) + "\n", encoding="utf-8")
