"""What every engine_NAME.py offers to run_engine.py.

    load(checkpoint, scratch) -> Model           weights as stored, arithmetic and cache in float32
    tokens_per_gib(checkpoint, ids) -> float     optional: tokens that 1 GiB of cache holds, by the engine's own count, in the
                                                 checkpoint's dtype

`checkpoint` is a directory of safetensors, `scratch` an empty directory for files that the engine converts it to.
"""

import abc

import numpy

GIB = 1 << 30


class Model(abc.ABC):
    """A checkpoint in an engine."""

    @abc.abstractmethod
    def logits(self, ids: list[int]) -> numpy.ndarray:
        """[len(ids), vocab_size] float32, but for a constant in each row: those behind each token."""

    def greedy(self, ids: list[int], count: int) -> list[int]:
        """The `count` most probable tokens behind `ids`, or fewer where the text ends. By the engine's own generation; this
        one is for engines that have none, and reads the whole text for every token."""
        text = list(ids)
        for _ in range(count):
            text.append(int(self.logits(text)[-1].argmax()))
        return text[len(ids):]
