"""Attention of a prompt's chunk in torch, for devices that the library has no kernel on. What a query reads stands in
tiled_attention.py.

Queries come in blocks of BLOCK positions. Tokens that all queries of a block see are one product without a mask, by torch's
flash attention where it runs. The others, of at most BLOCK tokens at either end of the codes and of the exact rows, are
masked. Parts are joined by the logarithms of their sums. What the parts of a query are depends on its position alone, not on
where the prompt was cut.
"""

import dataclasses

import torch

from kvconvert.codes import TILE, exact_start

BLOCK = 256  # positions; a multiple of TILE
MOST_SCORES = 1 << 24  # numbers of a masked product that are in memory together


@dataclasses.dataclass
class _Rows:
    """Keys and values of tokens first .. last - 1, [tokens, num_kv_heads, head_dim]."""

    keys: torch.Tensor
    values: torch.Tensor
    first: int

    @property
    def last(self) -> int:
        return self.first + self.keys.shape[0]

    def between(self, begin: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        span = slice(begin - self.first, end - self.first)
        return self.keys[span], self.values[span]


@dataclasses.dataclass
class _Seen:
    """Rows that a block of queries reads. Query i sees tokens low[i] .. high[i] - 1, all of them between first and last - 1."""

    rows: _Rows
    low: torch.Tensor
    high: torch.Tensor
    first: int
    last: int
    shared_end: int  # every query's high is at least this


class Joined:
    """Outputs float32 [..., channels] of the parts so far, and the logarithms of their sums [...]."""

    def __init__(self) -> None:
        self.output: torch.Tensor | None = None
        self.sums: torch.Tensor | None = None

    def add(self, output: torch.Tensor, sums: torch.Tensor) -> None:
        """A part; its sums are -inf for queries that see none of its tokens."""
        if self.output is None:
            self.output, self.sums = output, sums
            return
        both = torch.logaddexp(self.sums, sums)
        finite = both.clamp(min=torch.finfo(both.dtype).min)  # -inf - -inf is no number
        self.output = (self.output * (self.sums - finite).exp()[..., None]).addcmul_(output, (sums - finite).exp()[..., None])
        self.sums = both


class PromptBlocks:
    """Attention of a sequence's last queries; arguments as those of tiled_attention.attend_prompt."""

    def __init__(self, query: torch.Tensor, length: int, coded: tuple[torch.Tensor, torch.Tensor],
                 exact: tuple[torch.Tensor, torch.Tensor], scale: float, softcap: float, window: int, exact_step: bool,
                 exact_tiles: int):
        self.query, self.length, self.scale, self.softcap, self.window, self.exact_step, self.exact_tiles = (
            query, length, scale, softcap, window, exact_step, exact_tiles)
        self.exact = _Rows(*exact, length - exact[0].shape[0])
        end = self._exact_start(length - 1)
        self.coded = _Rows(*coded, end - coded[0].shape[0])
        self.first = length - query.shape[0]
        seen = self._seen_from(self.first)
        if self.first < 0 or self.exact.first > max(self._exact_start(self.first), seen) or self.coded.first < 0 or self.coded.first > seen and end > seen:
            raise ValueError(
                f"attend_prompt: tokens that queries see are missing: exact ones from {self.exact.first}, coded ones from "
                f"{self.coded.first} to {end}, queries from {self.first}")

    def attend(self, out: torch.Tensor) -> None:
        """To out [num_queries, num_heads, head_dim]."""
        for block in range(self.first // BLOCK * BLOCK, self.length, BLOCK):
            begin, end = max(block, self.first), min(block + BLOCK, self.length)
            rows = slice(begin - self.first, end - self.first)
            out[rows] = self._attend_block(self.query[rows], block, begin, end).transpose(0, 1)

    def _seen_from(self, token: int) -> int:
        """The first token that a token sees."""
        return max(0, token - self.window + 1) if self.window else 0

    def _exact_start(self, token: int) -> int:
        """The first token that a token reads exactly."""
        return self.exact.first if self.exact_step else exact_start(token, self.exact_tiles)

    def _attend_block(self, query: torch.Tensor, block: int, begin: int, end: int) -> torch.Tensor:
        """[num_heads, queries, head_dim] of tokens begin .. end - 1, which are of the positions from `block` on."""
        joined = Joined()
        tokens = torch.arange(begin, end, device=query.device)
        seen = (tokens - self.window + 1).clamp_(min=0) if self.window else torch.zeros_like(tokens)
        own = (torch.full_like(tokens, self.exact.first) if self.exact_step
               else (tokens // TILE - (self.exact_tiles - 1)).clamp_(min=0) * TILE)
        own_begin, own_end = self._exact_start(begin), self._exact_start(end - 1)
        # All of the block's tokens see codes before the block, and what a step brought before it.
        coded_end, exact_end = (self.coded.last, block) if self.exact_step else (self._exact_start(block), 0)
        first_seen, shared_begin = self._seen_from(begin), self._seen_from(block + BLOCK - 1)
        coded = _Seen(self.coded, seen, own, first_seen, min(own_end, self.coded.last), coded_end)
        exact = _Seen(self.exact, torch.maximum(seen, own), tokens + 1, max(first_seen, own_begin), end, exact_end)
        for part in (coded, exact):
            self._add_part(joined, query, part, shared_begin)
        return joined.output

    def _add_part(self, joined: Joined, query: torch.Tensor, part: _Seen, shared_begin: int) -> None:
        """shared_begin: every query's low is at most this."""
        first = max(part.first, part.rows.first)
        begin, end = max(first, shared_begin), min(part.shared_end, part.last)
        if begin >= end:
            begin = end = first
        self._add_masked(joined, query, part.rows, first, begin, part.low, part.high)
        self._add_shared(joined, query, part.rows, begin, end)
        self._add_masked(joined, query, part.rows, end, part.last, part.low, part.high)

    def _add_shared(self, joined: Joined, query: torch.Tensor, rows: _Rows, first: int, last: int) -> None:
        """Tokens that every query sees."""
        if first >= last:
            return
        if self.softcap or not _flash_runs(query):
            self._add_masked(joined, query, rows, first, last, None, None)
        else:
            joined.add(*flash(query, *rows.between(first, last), self.scale))

    def _add_masked(self, joined: Joined, query: torch.Tensor, rows: _Rows, first: int, last: int,
                    low: torch.Tensor | None, high: torch.Tensor | None) -> None:
        """Tokens first .. last - 1, of which query i sees those from low[i] to high[i] - 1."""
        most = max(TILE, MOST_SCORES // (query.shape[0] * query.shape[1]))
        for begin in range(first, last, most):
            end = min(begin + most, last)
            hidden = None
            if low is not None:
                keys = torch.arange(begin, end, device=query.device)
                hidden = (keys < low[:, None]) | (keys >= high[:, None])
            joined.add(*masked(query, *rows.between(begin, end), self.scale, self.softcap, hidden))


def masked(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, softcap: float,
           hidden: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Output [num_heads, queries, head_dim] and logarithms of sums [num_heads, queries], in float32. hidden: bool
    [queries, tokens], None: no token is."""
    num_queries, heads, head_dim = query.shape
    kv_heads = keys.shape[1]
    rows = query.float().view(num_queries, kv_heads, heads // kv_heads, head_dim).permute(1, 2, 0, 3)
    scores = rows.flatten(1, 2) @ keys.float().permute(1, 2, 0)  # [kv_heads, queries of its heads, tokens]
    weights, sums = softmax(scores.view(kv_heads, -1, num_queries, scores.shape[-1]), scale, softcap, hidden)
    output = weights.view_as(scores) @ values.float().transpose(0, 1)
    return output.view(heads, num_queries, head_dim), sums.view(heads, num_queries)


def softmax(products: torch.Tensor, scale: float, softcap: float, hidden: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights, in place of the products of queries and keys [..., tokens], and logarithms of their sums [...]: -inf, and weights 0,
    where all tokens are hidden. hidden: bool that broadcasts to them, None: no token is."""
    scores = torch.tanh(products.mul_(scale / softcap)).mul_(softcap) if softcap else products.mul_(scale)
    if hidden is not None:
        scores.masked_fill_(hidden, -torch.inf)
    sums = torch.logsumexp(scores, -1)
    return scores.sub_(sums.clamp(min=torch.finfo(sums.dtype).min)[..., None]).exp_(), sums


def flash(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """As masked(), with no token hidden, by CUDA's kernel; a KV head serves several query heads there."""
    heads = (rows.transpose(0, 1)[None] for rows in (query, keys, values))
    output, sums = torch.ops.aten._scaled_dot_product_flash_attention(*heads, scale=scale)[:2]
    return output[0].float(), sums[0, :, : query.shape[0]]


def _flash_runs(query: torch.Tensor) -> bool:
    head_dim = query.shape[-1]
    return (query.is_cuda and query.dtype in (torch.bfloat16, torch.float16) and head_dim % 8 == 0 and head_dim <= 256
            and torch.cuda.get_device_capability(query.device) >= (8, 0))
