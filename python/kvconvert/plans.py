"""The plan of a converted directory, from its config.json."""

import json
import pathlib

from kvconvert.factors import ConversionError

FORMAT = 1


def read_config(directory: str | pathlib.Path) -> dict:
    """config.json of a converted directory. Raises ConversionError for any other directory."""
    path = pathlib.Path(directory) / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConversionError(f"{path}: {error.strerror}; expected a directory that kvconvert wrote") from error
    except ValueError as error:
        raise ConversionError(f"{path}: no JSON: {error}; convert the checkpoint again") from error
    conversion = config.get("kvconvert") if isinstance(config, dict) else None
    if not isinstance(conversion, dict) or not isinstance(conversion.get("plan"), dict):
        raise ConversionError(f"{path}: has no plan under the key kvconvert; expected a directory that "
                              "`kvconvert --export factored` wrote")
    if conversion.get("format") != FORMAT:
        raise ConversionError(f"{path}: format {conversion.get('format')}, expected {FORMAT}; convert again with this "
                              "version")
    return config


def read_plan(directory: str | pathlib.Path) -> dict:
    """The plan of a directory that engines can serve: method coded, every token coded at once."""
    config = read_config(directory)
    path, plan = pathlib.Path(directory) / "config.json", config["kvconvert"]["plan"]
    if plan.get("method") != "coded":
        raise ConversionError(f"{path}: method {plan.get('method')}, expected coded; convert with --method coded, run "
                              "it with kvrun, or convert with --export folded, which runs everywhere")
    policy = plan.get("policy", {})
    sink, window = policy.get("sink_tokens"), policy.get("window_tokens")
    if sink != 0 or window != 0:
        raise ConversionError(f"{path}: {sink} first and {window} last tokens stay exact, expected none; convert with "
                              "--sink 0 --window 0, or run this directory with kvrun")
    return plan
