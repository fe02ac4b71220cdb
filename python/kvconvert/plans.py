"""The plan of a converted directory, from its config.json."""

import contextlib
import json
import pathlib
from collections.abc import Iterator

from kvconvert.factors import MOST_NUMBERS, ConversionError

FORMAT = 1  # of the config's key kvconvert
_ONE_PROJECTION = ("phi3",)  # families whose queries, keys and values come of one matrix


def read_config(directory: str | pathlib.Path) -> dict:
    """config.json of a converted directory. Raises ConversionError for any other directory."""
    path = pathlib.Path(directory) / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConversionError(f"{path}: cannot be read: {error}; expected a directory that kvconvert wrote") from error
    conversion = config.get("kvconvert") if isinstance(config, dict) else None
    if not isinstance(conversion, dict) or not isinstance(conversion.get("plan"), dict):
        raise ConversionError(f"{path}: no conversion: it has no kvconvert.plan; run kvconvert first")
    check_format(conversion, path)
    family = family_of(conversion)
    if family is not None and config.get("model_type") != f"kvconvert_{family}":
        raise ConversionError(f"{path}: model_type is {config.get('model_type')!r}, expected 'kvconvert_{family}', of kvconvert.family; "
                              "convert again")
    if not isinstance(conversion["plan"].get("layers"), list):
        raise ConversionError(f"{path}: kvconvert.plan has no list of layers; convert again")
    return config


@contextlib.contextmanager
def reading(path: str | pathlib.Path, part: str = "kvconvert.plan") -> Iterator[None]:
    """While a part of the configuration in the file `path` is read: what is missing, or of another type, is an error that names it."""
    try:
        yield
    except ConversionError:  # a ValueError that says more
        raise
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise ConversionError(f"{path}: {part}: {error!r}; convert again") from error


def check_format(conversion: dict, path: str | pathlib.Path) -> None:
    """Raises ConversionError for another version of the format. conversion: the configuration's key kvconvert, of the file `path`."""
    if conversion.get("format") != FORMAT:
        raise ConversionError(f"{path}: kvconvert.format is {conversion.get('format')}, expected {FORMAT}; "
                              "convert again, or install the kvconvert that wrote it")


def family_of(conversion: dict) -> str | None:
    """The source's model_type. conversion: the configuration's key kvconvert."""
    return conversion.get("family") or conversion.get("model_type")


def has_one_projection(conversion: dict) -> bool:
    """Does the family keep queries, keys and values in one matrix? conversion: as above."""
    return family_of(conversion) in _ONE_PROJECTION


def exact_tokens(plan: dict) -> tuple[int, int]:
    """The first and the last tokens of a sequence that a plan keeps exact."""
    policy = plan.get("policy", {})
    counts = policy.get("sink_tokens", 0), policy.get("window_tokens", 0)
    for name, count in zip(("sink_tokens", "window_tokens"), counts):
        if type(count) is not int or not 0 <= count <= MOST_NUMBERS:
            raise ConversionError(f"config.json: kvconvert.plan.policy.{name} is {count!r}, expected a number of tokens; convert again")
    return counts
