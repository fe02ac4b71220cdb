"""Which open tile of an engine's sequences has its exact rows where.

Pages hold codes alone, and a sequence reads its last tiles exactly. The rows of such tiles are kept beside the pages. A
tile is known by its place in the pages, so that nothing follows requests.
"""

from collections import OrderedDict
from typing import NamedTuple

_IDLE_STEPS = 256  # a tile that no step touched for so long gives its place to another, before there are more places


class Place(NamedTuple):
    number: int
    is_new: bool  # nothing is kept there yet


class OpenTiles:
    """Numbers of kept tiles, from 0 on; `capacity` places suffice for all that are in use. `most`: of a step, so that there
    are no more places. `each`: last tiles of a sequence, its open one included."""

    def __init__(self, most: int, each: int = 1) -> None:
        self.each = each
        self.capacity = min(16, most)
        self.most = most
        self._step = 0
        self._places: OrderedDict[int, tuple[int, int]] = OrderedDict()  # tile -> number, last step; the oldest first
        self._void: set[int] = set()  # tiles among these whose rows are not the pages' any more

    def begin_step(self) -> None:
        self._step += 1

    def place(self, tile: int, is_start: bool) -> Place:
        """Where a tile of the pages is kept. is_start: the step brings its first token, so that older rows are void."""
        found = self._places.pop(tile, None)
        is_void = found is None or tile in self._void
        self._void.discard(tile)
        number = self._free() if found is None else found[0]
        self._places[tile] = (number, self._step)
        return Place(number, is_void and not is_start)

    def forget(self, tile: int) -> None:
        """Tokens come to a tile of the pages, and their rows are not kept."""
        if tile in self._places:
            self._void.add(tile)

    def _free(self) -> int:
        if len(self._places) < self.capacity:
            return len(self._places)
        oldest, (number, step) = next(iter(self._places.items()))
        is_idle = self._step - step >= _IDLE_STEPS or self.capacity >= self.most
        if not is_idle or step == self._step:
            self.capacity = 2 * self.capacity if self.capacity >= self.most else min(2 * self.capacity, self.most)
            return len(self._places)
        self._places.popitem(last=False)
        self._void.discard(oldest)
        return number
