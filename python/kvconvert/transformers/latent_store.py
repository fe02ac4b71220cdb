"""Latents of the layers that share them, exact rows beside them, and attention over both."""

from typing import TYPE_CHECKING

import torch

from kvconvert.codes import TILE
from kvconvert.latent_attention import StoredRows, attend_rows
from kvconvert.latents import Latents
from kvconvert.tiled_attention import attend_prompt

if TYPE_CHECKING:
    from kvconvert.transformers.cache import Step
    from kvconvert.transformers.model_latents import ModelLatents

Rows = tuple[torch.Tensor, ...]  # of one layer and sequence: keys, values [n, kv_heads, head_dim], and latents [n, rank] if held


class LatentStore:
    """A sequence has `sinks` exact tokens, then latents, then exact tokens, in the order of the text.

    A pass of several tokens makes latents of all that leave the window, as kvrun does at the end of a prompt; a pass of one
    token does when a block of them has left it. Latents of calibrated groups exist after the last layer of the group.
    """

    def __init__(self, model_latents: "ModelLatents", number: int):
        self.model_latents, self.number = model_latents, number
        self.layers = model_latents.stores[number]
        checkpoint = model_latents.checkpoint
        self.sinks, self.window, self.block = checkpoint.sinks, checkpoint.window, checkpoint.block_tokens
        self.projected = not model_latents.latents[number].group.calibrated  # of inputs, so a token's exist at once
        # There are no exact rows: a new token's keys and values are those that its latent gives.
        self.at_once = model_latents.latents[number].group.replaces_projections and (self.sinks, self.window, self.block) == (0, 0, 1)
        self.latents: torch.Tensor | None = None  # [batch, tokens, rank], in whole tiles of tokens
        self.counts: list[int] = []  # of each sequence
        self.exact: list[Rows] = [() for _ in self.layers]  # [batch, tokens, ...] each
        self.exact_counts: list[int] = []
        self._new: list[list[Rows]] = []  # of a pass, for each layer so far and each sequence

    def nbytes(self) -> int:
        exact = sum(part.nbytes for rows in self.exact for part in rows)
        return exact + (0 if self.latents is None else self.latents.nbytes)

    def attend(self, place: int, step: "Step", query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float,
               softcap: float | None) -> torch.Tensor:
        """Attends to all tokens and stores the step's. query [batch, heads, q, head_dim], and so is the result."""
        latents, last = self.model_latents.latents[self.number], place == len(self.layers) - 1
        latents.use(key.dtype, key.device)
        if place == 0:
            self._use(key.dtype)
        held = (self.model_latents.take_latents(self.layers[place]).to(key.dtype),) if self.projected else ()
        if not self.counts:
            self.counts, self.exact_counts = [0] * len(step.lengths), [0] * len(step.lengths)
        if query.shape[2] == 1 and min(step.lengths) > 0 and step.index.min() >= 0:
            one = [part.squeeze(2) for part in (query, key, value)]
            return self._decode(latents, place, last, *one, held, scale, softcap or 0.0).unsqueeze(2)
        if place == 0:
            self._new = []
        self._new.append([self._new_rows(latents, place, step, row, key, value, held) for row in range(len(step.lengths))])
        out = torch.zeros_like(query)
        for row, new in enumerate(self._new[-1]):
            if len(new[0]):
                real = step.index[row] >= 0
                old = self._past(latents, place, row, step.past[row], query)
                out[row][:, real] = attend_prompt(
                    query[row][:, real].transpose(0, 1), step.lengths[row], old, new[:2], scale, softcap or 0.0,
                    latents.forms[place].window, exact_step=True).transpose(0, 1)
        if last:
            self._take(latents)
        return out

    def _use(self, dtype: torch.dtype) -> None:
        """Holds rows of this type from now on: a model may change its type while it has a cache."""
        if self.latents is not None and self.latents.dtype != dtype:
            self.latents = self.latents.to(dtype)
        self.exact = [tuple(part.to(dtype) for part in rows) for rows in self.exact]

    def _new_rows(self, latents: Latents, place: int, step: "Step", row: int, key: torch.Tensor, value: torch.Tensor, held: Rows) -> Rows:
        """Those of a sequence's tokens in the step, without padding."""
        real = step.index[row] >= 0
        own = tuple(part[row][real] for part in held)
        if held and self.model_latents.checkpoint.truncated:
            return latents.keys(place, own[0], step.past[row]).to(key.dtype), latents.values(place, own[0]), *own
        return *(part[row][:, real].transpose(0, 1) for part in (key, value)), *own

    def _past(self, latents: Latents, place: int, row: int, past: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a sequence's tokens that the next one sees, which is at position `past`; like: of their type, on
        their device."""
        window = latents.forms[place].window
        first = max(past - window + 1, 0) if window else 0
        count, exact = self.counts[row], self.exact_counts[row]
        sinks = min(self.sinks, exact)
        begin = min(max(first - sinks, 0), count)
        parts = [(), ()]
        if count:
            own = self.latents[row, begin:count]
            parts = [(latents.keys(place, own, sinks + begin).to(like.dtype),), (latents.values(place, own),)]
        if not self.exact[place]:
            empty = like.new_zeros(0, latents.num_kv_heads, latents.head_dim)
            return tuple(torch.cat((*part, empty)) for part in parts)
        spans = (min(first, sinks), sinks), (max(sinks, min(first - count, exact)), exact)
        return tuple(torch.cat((rows[row, slice(*spans[0])], *part, rows[row, slice(*spans[1])]))
                     for part, rows in zip(parts, self.exact[place]))

    def _take(self, latents: Latents) -> None:
        """Stores the tokens of a pass of several, after its last layer."""
        places = range(len(self.layers))
        stays = []  # of each sequence: rows of each layer that stay exact
        for row, exact in enumerate(self.exact_counts):
            total = exact + len(self._new[0][row][0])
            leaving = max(0, total - self.sinks - self.window)
            if leaving:
                self._append(latents, row, [self._span(place, row, self.sinks, self.sinks + leaving) for place in places])
            sinks = min(self.sinks, total)
            ends = ((self._span(place, row, 0, sinks), self._span(place, row, sinks + leaving, total)) for place in places)
            stays.append([tuple(torch.cat(pair) for pair in zip(*both)) for both in ends])
            self.exact_counts[row] = total - leaving
        self._new = []
        self._grow_exact(stays[0])
        for row, layers in enumerate(stays):
            for kept_rows, rows in zip(self.exact, layers):
                for kept, part in zip(kept_rows, rows):
                    kept[row, :len(part)] = part

    def _span(self, place: int, row: int, first: int, last: int) -> Rows:
        """Tokens first .. last - 1 of a sequence's exact rows and the new ones behind."""
        exact = self.exact_counts[row]
        old = tuple(part[row, first:min(last, exact)] for part in self.exact[place])
        late = tuple(part[max(first - exact, 0):max(last - exact, 0)] for part in self._new[place][row])
        return tuple(torch.cat(pair) for pair in zip(old, late)) if old else late

    def _append(self, latents: Latents, row: int, leaving: list[Rows]) -> None:
        """Makes latents of tokens that leave the exact rows: those of each layer."""
        keys, values = [rows[0] for rows in leaving], [rows[1] for rows in leaving]
        count = self.counts[row]
        new = leaving[0][2] if self.projected else latents.encode(self.sinks + count, keys, values)
        self._grow(len(self.counts), count + len(new), latents.rank, keys[0])
        self.latents[row, count:count + len(new)] = new
        self.counts[row] = count + len(new)

    def _grow(self, batch: int, tokens: int, rank: int, like: torch.Tensor) -> None:
        """Room for latents of as many tokens, in whole tiles."""
        held = 0 if self.latents is None else self.latents.shape[1]
        if held < tokens:
            grown = like.new_zeros(batch, -(-tokens // TILE) * TILE, rank)
            if held:
                grown[:, :held] = self.latents
            self.latents = grown

    def _grow_exact(self, like: list[Rows]) -> None:
        """Room for the exact rows of every sequence, in whole tiles. like: rows of each layer, [any, ...]."""
        tokens, batch = -(-max(self.exact_counts) // TILE) * TILE, len(self.exact_counts)
        for layer, rows in enumerate(like):
            held = self.exact[layer]
            if tokens and (not held or held[0].shape[1] < tokens):
                grown = tuple(part.new_zeros(batch, tokens, *part.shape[1:]) for part in rows)
                for old, new in zip(held, grown):
                    new[:, :old.shape[1]] = old
                self.exact[layer] = grown

    def _decode(self, latents: Latents, place: int, last: bool, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                held: Rows, scale: float, softcap: float) -> torch.Tensor:
        """Stores one token of each sequence and attends. [batch, heads, head_dim]"""
        batch = torch.arange(len(self.counts), device=key.device)
        if self.at_once:
            self._grow(len(batch), max(self.counts) + 1, latents.rank, key)
            self.latents[batch, self.counts] = held[0].squeeze(1).to(self.latents.dtype)
            self.counts = [count + 1 for count in self.counts]
            keys = values = key[:, None]
        else:
            new = (key, value, *(part.squeeze(1) for part in held))
            places = self.exact_counts if place == 0 else [count - 1 for count in self.exact_counts]
            if place == 0:
                self.exact_counts = [count + 1 for count in self.exact_counts]
                self._grow_exact([new] * len(self.layers))
            for kept, part in zip(self.exact[place], new):
                kept[batch, places] = part.to(kept.dtype)
            keys, values = self.exact[place][:2]
        stored = key.new_zeros(len(batch), 0, latents.rank) if self.latents is None else self.latents
        rows = StoredRows(stored, self.counts, keys, values, self.exact_counts, self.sinks)
        out = attend_rows(latents, place, query, rows, scale, softcap)
        if last and not self.at_once:
            for row, exact in enumerate(self.exact_counts):
                if exact - self.sinks - self.window >= self.block:
                    self._leave(latents, row, self.block)
        return out

    def _leave(self, latents: Latents, row: int, count: int) -> None:
        """Makes latents of a sequence's first exact tokens behind the sinks."""
        first, last, end = self.sinks, self.sinks + count, self.exact_counts[row]
        self._append(latents, row, [tuple(part[row, first:last] for part in rows) for rows in self.exact])
        for rows in self.exact:
            for part in rows:
                part[row, first:end - count] = part[row, last:end].clone()
        self.exact_counts[row] = end - count

    def crop(self, lengths: list[int]) -> None:
        """Keeps the first tokens of each sequence."""
        for row, length in enumerate(lengths if self.counts else ()):
            sinks = min(self.sinks, self.exact_counts[row], length)
            self.counts[row] = min(self.counts[row], length - sinks)
            self.exact_counts[row] = min(self.exact_counts[row], length - self.counts[row])

    def take_rows(self, rows: torch.Tensor) -> None:
        if not self.counts:
            return
        self.counts, self.exact_counts = ([counts[row] for row in rows.tolist()] for counts in (self.counts, self.exact_counts))
        if self.latents is not None:
            self.latents = self.latents.index_select(0, rows.to(self.latents.device))
        self.exact = [tuple(part.index_select(0, rows.to(part.device)) for part in kept) for kept in self.exact]
