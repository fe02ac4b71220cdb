"""Caches of codes in an engine's pages: what the transformers and vLLM integrations share.

A page holds tiles of 32 tokens. What a page's bytes mean is the library's (runtime/ops/paged_codes.h).
"""

import dataclasses
import pathlib
import sys

import torch

from kvconvert._ops import ops
from kvconvert.checkpoints import ConvertedCheckpoint, StoredTokens
from kvconvert.factors import PARTS, Block, ConversionError, block_of, check_sizes, load_factors
from kvconvert.plans import exact_tokens

TILE = 32  # tokens of a tile
_NONE = torch.empty(0, device="cpu")
_CPU = torch.device("cpu")


def tile_start(token: int) -> int:
    """The first token of the tile that a token is in."""
    return token // TILE * TILE


def exact_start(token: int, exact_tiles: int) -> int:
    """The first token that a token reads exactly, of as many tiles with its own."""
    return max(0, tile_start(token) - TILE * (exact_tiles - 1))


def codes_class(device: torch.device) -> type["LayerCodes"]:
    """What computes on the tensors of a device."""
    if device.type == "cpu":
        return LayerCodes
    from kvconvert.device_codes import DeviceCodes

    return DeviceCodes


class CodedCheckpoint(ConvertedCheckpoint):
    """All layers are coded.

    stores: the layers that are coded together, ascending; one each for the scopes head and layer.
    """

    stored = "codes"

    @staticmethod
    def takes(plan: dict) -> bool:
        return plan["method"] == "coded" and set(plan["layers"]) == {"coded"}

    @staticmethod
    def why_refused(conversion: dict) -> str | None:
        return None

    @staticmethod
    def why_not_exact(plan: dict, engine: str) -> str | None:
        sink, window = exact_tokens(plan)
        rule = plan.get("policy", {}).get("rule", "none")
        if sink > 0 or window % TILE > 0:
            return (f"the first {sink} and last {window} tokens stay exact, and {engine} keeps none of the first, and of the last a "
                    f"multiple of {TILE}; convert with `kvconvert --for {engine.lower()}`")
        if rule != "none":
            return f"{engine} keeps all tokens, and this conversion has the token policy '{rule}'; convert without a policy"
        return None

    @staticmethod
    def why_unlike_report(plan: dict) -> str | None:
        return None if plan.get("policy", {}).get("prefill") == "coded" else (
            "converted with --prefill exact, and engines read prompts through codes, so more is lost than its report states; convert "
            "with --for vllm or --for transformers")

    @staticmethod
    def why_not_split(plan: dict, ranks: int) -> str | None:
        joint = plan["num_kv_heads"] > 1 and any(block.get("head") is None for block in plan["coded"])
        return (f"codes over all {plan['num_kv_heads']} KV heads cannot be split over {ranks} tensor parallel ranks; convert with "
                "`kvconvert --scope head`, or use --pipeline-parallel-size") if joint else None

    @staticmethod
    def stored_tokens(plan: dict, number_bytes: int) -> StoredTokens:
        blocks = [block_of(number, spec) for number, spec in enumerate(plan["coded"])]
        scopes = {"group" if block.num_layers > 1 else "layer" if block.head is None else "head" for block in blocks}
        forms = {_form(block) for block in blocks if block.part != "values"}
        return StoredTokens(sum(block.tile_bytes for block in blocks) / TILE, scopes=tuple(sorted(scopes)), forms=tuple(sorted(forms)))

    def __init__(self, directory: str | pathlib.Path):
        super().__init__(directory)
        with self.reading_plan("kvconvert.plan.coded"):
            self.blocks = [block_of(i, spec) for i, spec in enumerate(self.plan["coded"])]
            for block in self.blocks:
                check_sizes(block, self.num_kv_heads, self.head_dim)
        stores = sorted({(block.first_layer, block.num_layers) for block in self.blocks})
        self.stores = [list(range(first, first + count)) for first, count in stores]
        if [layer for store in self.stores for layer in store] != list(range(self.num_layers)):
            raise ConversionError(f"{self.path}: kvconvert.plan.coded does not cover each of {self.num_layers} layers once; convert "
                                  "again")
        self.files = self.open_files()

    def _check_heads(self, layers: list[int]) -> None:
        """Raises ConversionError unless the blocks of a store have each KV head's keys and values once."""
        blocks = [block for block in self.blocks if block.first_layer == layers[0]]
        for part in ("keys", "values"):
            heads = sorted(head for block in blocks if block.part in ("both", part)
                           for head in (range(self.num_kv_heads) if block.head is None else (block.head,)))
            if heads != list(range(self.num_kv_heads)):
                raise ConversionError(f"{self.path}: kvconvert.plan.coded: blocks of layer {layers[0]} have {part} of the KV heads {heads}, "
                                      f"expected each of {self.num_kv_heads} once; convert again")

    @property
    def codes_first(self) -> bool:
        """Is a text's first token coded about a mean of its own?"""
        return self.sinks == 0 and self.plan.get("policy", {}).get("prefill") == "coded"

    @property
    def exact_tiles(self) -> int:
        """Tiles that a token reads exactly: its own, and as many as the plan's window has."""
        return 1 + self.window // TILE

    def store_blocks(self, layers: list[int], first_head: int = 0, num_heads: int | None = None) -> list[Block]:
        """The blocks behind one store, those of some KV heads alone where blocks have one head each."""
        heads = range(first_head, first_head + (num_heads or self.num_kv_heads))
        return [block for block in self.blocks
                if block.first_layer == layers[0] and (block.head is None or block.head in heads)]

    def tile_bytes(self, layers: list[int], first_head: int = 0, num_heads: int | None = None) -> int:
        """Bytes of 32 tokens of these layers."""
        return sum(block.tile_bytes for block in self.store_blocks(layers, first_head, num_heads))

    def open(self, layers: list[int], rope: tuple[torch.Tensor, torch.Tensor] | None, *, num_query_heads: int,
             scale: float | None = None, softcap: float = 0.0, window: int = 0, interleaved: bool = False,
             first_head: int = 0, num_heads: int | None = None, device: torch.device | str = _CPU) -> "LayerCodes":
        """Codes of layers that are coded together, for KV heads first_head to first_head + num_heads - 1 (None: all), on
        tensors of a device. Raises ConversionError where the library was built without kernels for it.

        rope: cos and sin, float32 [positions, pairs] with the engine's scaling, None without RoPE; a table is shared by
        the layers that pass the same tensors. scale, softcap: of scores, 1 / sqrt(head_dim) and none by default. window: a
        query sees as many last tokens, itself included (0: all). interleaved: rotary pairs are neighbouring channels.
        """
        heads = num_heads or self.num_kv_heads
        if layers not in self.stores:
            raise ConversionError(f"layers {layers} are not coded together; those that are: {self.stores}")
        self._check_heads(layers)
        blocks = self.store_blocks(layers, first_head, num_heads)
        if heads < self.num_kv_heads and any(block.head is None for block in blocks):
            raise ConversionError(f"{self.directory}: codes over all KV heads cannot be split; convert with --scope head")
        device = torch.device(device)
        return codes_class(device)(self, layers, blocks, rope, num_query_heads, scale, softcap, window, interleaved, first_head,
                                   heads, device)


def _form(block: Block) -> str:
    if block.part == "both":
        return "full"
    if block.rotated:
        return "rotated"
    return "keys" if block.bases == 1 else f"blocks:{block.bases}"


@dataclasses.dataclass
class OpenRows:
    """Exact keys and values of one layer's tiles that may not be full yet, [tiles, 32, num_kv_heads, head_dim] each, in the
    library's order of channels."""

    keys: torch.Tensor
    values: torch.Tensor

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    def take(self, tiles: torch.Tensor) -> "OpenRows":
        """These tiles, some of them repeatedly."""
        tiles = tiles.to(self.keys.device)
        return OpenRows(self.keys.index_select(0, tiles), self.values.index_select(0, tiles))

    def grown(self, tiles: int) -> "OpenRows":
        """With as many tiles; new ones are zero."""
        more = (tiles - self.keys.shape[0], *self.keys.shape[1:])
        return OpenRows(*(torch.cat((rows, rows.new_zeros(more))) for rows in (self.keys, self.values)))


class LayerCodes:
    """Codes of the layers of one store. Tensors are on `device`: here the CPU."""

    def __init__(self, checkpoint, layers, blocks, rope, num_query_heads, scale, softcap, window, interleaved, first_head, heads,
                 device):
        self.layers, self.num_kv_heads, self.head_dim, self.device = layers, heads, checkpoint.head_dim, device
        self.exact_tiles: int = checkpoint.exact_tiles
        self._handle = None
        if rope is None:
            rope = (torch.empty(1 << 30, 0, device=_CPU), torch.empty(1 << 30, 0, device=_CPU))  # any number of positions without pairs
        cos, sin = (checkpoint.on_device(part, _CPU).to(torch.float32).contiguous() for part in rope)
        pairs = cos.shape[1]
        self._order = self._back = None
        if interleaved:  # factors have the first channels of all pairs, then the second ones
            first = torch.arange(0, 2 * pairs, 2, device=_CPU)
            order = torch.cat((first, first + 1, torch.arange(2 * pairs, self.head_dim, device=_CPU)))
            self._order, self._back = order.to(device), order.argsort().to(device)
        numbers, tensors = [], []
        for block in blocks:
            factors = load_factors(checkpoint.files, block, checkpoint.num_kv_heads, self.head_dim, pairs,
                                   checkpoint.codes_first)
            tensors += [factors.encoder, factors.decoder, factors.mean, factors.steps, factors.channels, factors.first]
            numbers += [-1 if block.head is None else block.head, PARTS[block.part], block.bases, int(block.rotated),
                        int(block.gain), *block.coefficients]
        scales = torch.tensor([self.head_dim**-0.5 if scale is None else scale, softcap], dtype=torch.float32, device=_CPU)
        self.tile_bytes: int = sum(block.tile_bytes for block in blocks)
        self._ops = ops()
        self._open(checkpoint, [len(layers), num_query_heads, heads, self.head_dim, first_head, window], scales, cos, sin, numbers,
                   tensors)

    def __del__(self):
        # At the interpreter's end torch may be gone, and the process's memory goes with it.
        if getattr(self, "_handle", None) is not None and not sys.is_finalizing():
            self._close()

    # What the library does; DeviceCodes has other operators. Channels are in the library's order.

    def _open(self, checkpoint: CodedCheckpoint, shape: list[int], scales: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor,
              blocks: list[int], factors: list[torch.Tensor]) -> None:
        self._handle = self._ops.open(shape, scales, cos, sin, blocks, factors)

    def _close(self) -> None:
        self._ops.close(self._handle)

    def _store(self, pages, slots, positions, keys, values) -> None:
        self._ops.store(self._handle, pages, slots, positions, keys, values)

    def _attend(self, layer, out, query, pages, block_table, tokens, max_tokens, open_keys, open_values, open_tiles) -> None:
        self._ops.attend(self._handle, layer, out, query, pages, block_table, tokens, open_keys, open_values, open_tiles)

    def _read(self, layer, pages, page_numbers, first, keys, values) -> None:
        self._ops.read(self._handle, layer, pages, page_numbers, first, keys, values)

    def store(self, pages: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor,
              keys: list[torch.Tensor], values: list[torch.Tensor]) -> None:
        """Codes tokens. pages uint8 [pages, bytes]; slots, positions int64 [T]: page * page tokens + place, below 0: skipped.

        keys, values: of every layer of the store, [T, num_kv_heads, head_dim] float32, bfloat16 or float16, keys post-RoPE.
        Tokens of a sequence are neighbours, and the first token of a tile is written before the others.
        """
        if self._order is not None:
            keys = [key[..., self._order] for key in keys]
        self._store(pages, slots, positions, keys, values)

    def new_open_rows(self, tiles: int, dtype: torch.dtype) -> OpenRows:
        """Of as many tiles, for one layer."""
        shape = (tiles, TILE, self.num_kv_heads, self.head_dim)
        return OpenRows(*(torch.zeros(shape, dtype=dtype, device=self.device) for _ in range(2)))

    def keep(self, rows: OpenRows, places: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Keeps tokens [n, num_kv_heads, head_dim], keys post-RoPE, at places int64 [n]: tile * 32 + place in the tile."""
        if self._order is not None:
            key = key[..., self._order]
        rows.keys.flatten(0, 1).index_copy_(0, places, key.to(rows.keys.dtype))
        rows.values.flatten(0, 1).index_copy_(0, places, value.to(rows.values.dtype))

    def keep_coded(self, rows: OpenRows, tile: int, pages: torch.Tensor, page_numbers: torch.Tensor, first: int,
                   count: int, layer: int = 0) -> None:
        """Stores the decoded keys and values of a tile's first tokens, first .. first + count - 1, whose exact rows no longer exist."""
        old = self.read(pages, page_numbers, first, count, rows.keys.dtype, layer)
        self.keep(rows, tile * TILE + torch.arange(count, device=self.device), *old)

    def kept(self, rows: OpenRows, tiles: list[int], count: int, key: torch.Tensor,
             value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the first `count` tokens of these tiles, one after the other, then these, which follow them."""
        if count == 0:
            return key, value
        old, old_values = (torch.cat([part[tile] for tile in tiles])[:count] for part in (rows.keys, rows.values))
        return torch.cat((old if self._back is None else old[..., self._back], key)), torch.cat((old_values, value))

    def attend(self, out: torch.Tensor, query: torch.Tensor, pages: torch.Tensor, block_table: torch.Tensor,
               tokens: torch.Tensor, layer: int = 0, open_rows: OpenRows | None = None,
               open_tiles: torch.Tensor | None = None, max_tokens: int | None = None) -> None:
        """Attention of one query token of each sequence: over its last tiles exactly, from open_rows' tiles open_tiles int32
        [S, exact_tiles], its own last, and over the codes of the tiles before. Without them over codes alone, the query's own
        included. Numbers of tiles that a short sequence does not have are not read.

        query, out [S, num_query_heads, head_dim]; block_table int32 [S, pages]; tokens int32 [S]: lengths. layer: of the
        store's layers. What a sequence gets does not depend on the others. max_tokens: no length is larger; without it a
        device is waited for, and the CPU needs none.
        """
        if self._order is not None:
            query = query[..., self._order]
        if open_rows is None:
            open_rows, open_tiles = OpenRows(_NONE, _NONE), _NONE
        self._attend(layer, out, query, pages, block_table, tokens, max_tokens, open_rows.keys, open_rows.values, open_tiles)

    def read(self, pages: torch.Tensor, page_numbers: torch.Tensor, first: int, count: int, dtype: torch.dtype,
             layer: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys (post-RoPE) and values of tokens first (a multiple of 32) to first + count - 1 of a sequence with pages
        page_numbers int32. [count, num_kv_heads, head_dim]"""
        shape = (count, self.num_kv_heads, self.head_dim)
        keys, values = (torch.empty(shape, dtype=dtype, device=self.device) for _ in range(2))
        self._read(layer, pages, page_numbers, first, keys, values)
        return (keys if self._back is None else keys[..., self._back]), values
