"""A converted directory: its plan and its tensors."""

import contextlib
import pathlib

from kvconvert.factors import ConversionError, TensorFiles
from kvconvert.plans import exact_tokens, read_config

# What a method other than `coded` has to be converted with, so that transformers runs it.
LATENT_METHODS = "pca, xkv-static, palu and commonkv --merge none"
FUSED_METHODS = "fusedkv, fusedkv-lite, yoco and cla"


class ConvertedCheckpoint:
    """What all conversions share. Raises ConversionError for a directory that is none.

    stores: the layers whose tokens are stored together, ascending; a derived class sets it.
    """

    stores: list[list[int]]
    exact_tiles = 1  # last tiles of a sequence that a query reads exactly, its own included

    def __init__(self, directory: str | pathlib.Path):
        self.directory = pathlib.Path(directory)
        self.config = read_config(self.directory)
        self.plan = self.config["kvconvert"]["plan"]
        self.num_layers = len(self.plan["layers"])
        self.num_kv_heads, self.head_dim = self.plan["num_kv_heads"], self.plan["head_dim"]

    @property
    def path(self) -> pathlib.Path:
        return self.directory / "config.json"

    @property
    def sinks(self) -> int:
        """First tokens that the plan keeps exact."""
        return exact_tokens(self.plan)[0]

    @property
    def window(self) -> int:
        """Last tokens that the plan keeps exact."""
        return exact_tokens(self.plan)[1]

    @contextlib.contextmanager
    def reading_plan(self, part: str = "kvconvert.plan"):
        """While a part of the plan is read: what is missing, or of another type, is an error that names the file."""
        try:
            yield
        except (KeyError, TypeError) as error:
            raise ConversionError(f"{self.path}: {part}: {error!r}; convert again") from error

    def check_covers(self, part: str, source: str, layers: list[int]) -> None:
        """Raises ConversionError unless `layers`, of a part of the plan, are all that have this source, once."""
        if layers != [layer for layer, own in enumerate(self.plan["layers"]) if own == source]:
            raise ConversionError(f"{self.path}: kvconvert.plan.{part} does not cover each {source} layer once; convert again")

    def open_files(self) -> TensorFiles:
        """The tensors, whose checksum is compared. Raises ConversionError where they are damaged."""
        files = TensorFiles(self.directory)
        stated = self.config["kvconvert"].get("factors_sha256")
        if stated is not None:
            files.check(stated)
        return files

    def refused(self, engine: str) -> ConversionError:
        """The error for an engine that does not run this conversion."""
        sources = ", ".join(sorted(set(self.plan["layers"]) - {"coded"})) or "coded"
        return ConversionError(
            f"{self.path}: method {self.plan['method']} with {sources} layers does not run in {engine}; run it with kvrun, convert "
            f"with --method coded, {LATENT_METHODS}, or {FUSED_METHODS}, or export with --export folded")
