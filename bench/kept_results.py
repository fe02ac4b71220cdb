"""Measurements that a benchmark keeps, so that a run that was stopped goes on."""

import json
import sys


def check_settings(results, options, names):
    """Notes beside a file of results on which options they depend. Ends the program where it holds those of others."""
    file = results.with_suffix(".settings.json")
    settings = {name: getattr(options, name) for name in names}
    stated = json.loads(json.dumps(settings, default=lambda path: str(path.resolve())))
    if file.exists():
        kept = json.loads(file.read_text(encoding="utf-8"))
        other = [name for name in sorted({*kept, *stated}) if kept.get(name) != stated.get(name)]
        if other:
            sys.exit(f"{results}: holds measurements with another {', '.join(other)}; name another place, or remove it")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(stated, indent=1) + "\n", encoding="utf-8")
