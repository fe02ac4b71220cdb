"""A converted directory: its plan and its tensors."""

import dataclasses
import pathlib
import warnings
from contextlib import AbstractContextManager

import torch

from kvconvert.factors import ConversionError, TensorFiles, one_of, whole_number
from kvconvert.plans import exact_tokens, read_config, reading

SERVED_METHODS = "coded, pca, xkv-static, palu, commonkv with --merge none, fusedkv, fusedkv-lite, yoco or cla"


@dataclasses.dataclass(frozen=True)
class StoredTokens:
    """What a conversion stores of a token."""

    bytes_per_token: float | None = None  # of all layers; None: kvrun alone runs the directory
    layers_without_projections: int = 0  # whose key and value projections the directory leaves out
    keeps_exact: bool = True  # the tokens that the plan names
    scopes: tuple[str, ...] = ()  # of codes
    forms: tuple[str, ...] = ()
    latents: tuple[tuple[int, int], ...] = ()  # numbers of a latent and layers that share it, from the first layer on


class ConvertedCheckpoint:
    """A kind of conversion, and a directory of it. Raises ConversionError for any other directory.

    The class knows what engines ask of a kind, from a plan alone: its static methods. An engine keeps a table from kinds to
    what runs them. stores: the layers whose tokens are stored together, ascending; a derived class sets it.
    """

    stored: str  # what its cache holds, for messages
    stores: list[list[int]]
    exact_tiles = 1  # last tiles of a sequence that a query reads exactly, its own included

    @staticmethod
    def takes(plan: dict) -> bool:
        """Is a plan of this kind?"""
        return False

    @staticmethod
    def why_refused(conversion: dict) -> str | None:
        """Why only kvrun can run this conversion (the configuration's key kvconvert), and what to do instead; None if engines can."""
        return f"{', '.join(sorted(set(conversion['plan']['layers'])))} layers"

    @staticmethod
    def why_not_exact(plan: dict, engine: str) -> str | None:
        """Which exact tokens of the plan the engine (vLLM or transformers) does not keep exact; None if it keeps all."""

    @staticmethod
    def why_unlike_report(plan: dict) -> str | None:
        """Why engines read the directory differently from what its report measured, and what to do; None if they do not."""

    @staticmethod
    def why_not_split(plan: dict, ranks: int) -> str | None:
        """Why the directory cannot be split over tensor parallel ranks, and what to do instead; None if it can."""

    @staticmethod
    def why_not_adapted(plan: dict) -> str | None:
        """Why LoRA would give wrong results, and what to do instead; None if it would not."""

    @staticmethod
    def why_not_on_gpus(plan: dict) -> str | None:
        """Why a GPU cannot run the directory, and what to do instead; None if it can."""

    @staticmethod
    def stored_tokens(plan: dict, number_bytes: int) -> StoredTokens:
        """number_bytes: of a number of the original's cache."""
        raise NotImplementedError

    def __init__(self, directory: str | pathlib.Path):
        self.directory = pathlib.Path(directory)
        self.config = read_config(self.directory)
        self.plan = self.config["kvconvert"]["plan"]
        with self.reading_plan():
            kind = type(self) if self.takes(self.plan) else ConvertedCheckpoint
            reason = refusal(kind, self.config["kvconvert"])
            self.num_kv_heads, self.head_dim = (whole_number(name, self.plan[name], 1) for name in ("num_kv_heads", "head_dim"))
            one_of("policy.prefill", self.plan.get("policy", {}).get("prefill", "exact"), ("exact", "truncated", "coded"))
            unlike = self.why_unlike_report(self.plan)
        if reason is not None:
            raise ConversionError(f"{self.path}: {reason}")
        if unlike is not None:
            warnings.warn(f"{self.path}: {unlike}", stacklevel=2)
        self.num_layers = len(self.plan["layers"])
        self._moved: dict[tuple[int, torch.device], tuple[torch.Tensor, torch.Tensor]] = {}

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

    def reading_plan(self, part: str = "kvconvert.plan") -> AbstractContextManager:
        """While a part of the plan is read."""
        return reading(self.path, part)

    def check_covers(self, part: str, source: str, layers: list[int]) -> None:
        """Raises ConversionError unless `layers`, of a part of the plan, are all that have this source, once."""
        if layers != [layer for layer, own in enumerate(self.plan["layers"]) if own == source]:
            raise ConversionError(f"{self.path}: kvconvert.plan.{part} does not cover each {source} layer once; convert again")

    def on_device(self, table: torch.Tensor, device: torch.device) -> torch.Tensor:
        """A table, copied to a device once for all layers that ask."""
        key = (id(table), device)
        if key not in self._moved:
            self._moved[key] = (table, table.to(device))  # with the table, so that its id stays its own
        return self._moved[key][1]

    def open_files(self) -> TensorFiles:
        """The tensors, whose checksum is compared. Raises ConversionError where they are damaged."""
        files = TensorFiles(self.directory)
        stated = self.config["kvconvert"].get("factors_sha256")
        if stated is not None:
            files.check(stated)
        return files


def refusal(kind: type[ConvertedCheckpoint], conversion: dict) -> str | None:
    """Why engines do not run a conversion of this kind, for people; None: they do."""
    reason = kind.why_refused(conversion)
    return reason and (f"method {conversion['plan']['method']}: kvrun alone runs {reason}; engines run --method {SERVED_METHODS}, and "
                       "--method commonkv --export folded runs everywhere")
