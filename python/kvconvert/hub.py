"""Finds a model: a local directory or a name on a hub."""

import os
import pathlib


def local_directory(name: str | os.PathLike, folder: str = "", **options) -> pathlib.Path:
    """The directory of a model, or a folder in it; one on a hub is downloaded. options: snapshot_download's."""
    path = pathlib.Path(name) / folder
    if path.is_dir():
        return path
    from huggingface_hub import snapshot_download

    patterns = [f"{folder}/{files}" if folder else files for files in ("*.json", "*.safetensors")]
    return pathlib.Path(snapshot_download(str(name), allow_patterns=patterns, **options)) / folder
