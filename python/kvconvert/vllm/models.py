"""vLLM's own model classes with attention over codes or latents. There is no forward per family."""

from collections.abc import Iterable
from functools import cache
from typing import Any

import torch

from kvconvert.vllm.families import ARCHITECTURES, CLASS_PREFIX, REFUSED, served_architecture


@cache
def model_class(architecture: str) -> type[torch.nn.Module]:
    """vLLM's class `architecture`, with every converted layer's attention replaced."""
    from vllm import ModelRegistry
    from vllm.v1.worker.gpu_worker import Worker  # also of CPUs' workers

    from kvconvert.vllm.install import install_stores
    from kvconvert.vllm.refusals import ONE_LOAD, refuse_reloading, refuse_unsupported

    base = ModelRegistry.models[architecture].load_model_cls()

    class Served(base):
        def __init__(self, *, vllm_config: Any, prefix: str = "", **kwargs: Any) -> None:
            refuse_unsupported(vllm_config)
            refuse_reloading(Worker)
            super().__init__(vllm_config=vllm_config, prefix=prefix, **kwargs)
            self.kvconvert_stores = install_stores(self, vllm_config)
            self.kvconvert_loaded = False

        def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Any:
            if self.kvconvert_loaded:
                raise ValueError(ONE_LOAD)
            self.kvconvert_loaded = True
            # Factors are read by the stores' checkpoint, which checks them.
            loaded = super().load_weights((n, w) for n, w in weights if not n.startswith("kvconvert."))
            for store in self.kvconvert_stores:
                store.weights_loaded()
            return loaded

    Served.__name__ = Served.__qualname__ = CLASS_PREFIX + architecture
    Served.__module__ = __name__
    return Served


@cache
def _refused_class(family: str) -> type[torch.nn.Module]:
    from vllm.model_executor.models.llama import LlamaForCausalLM

    class Refused(LlamaForCausalLM):
        def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
            raise ValueError(f"kvconvert: vLLM does not serve {family} from codes: {REFUSED[family]}")

    return Refused


def __getattr__(name: str) -> Any:
    for architecture in ARCHITECTURES.values():
        if name == CLASS_PREFIX + architecture:
            return model_class(architecture)
    for family in REFUSED:
        if name == served_architecture(family):
            return _refused_class(family)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
