"""Lets vLLM run its second model runner, the default on GPUs, on a CPU without triton-cpu: Triton interprets the runner's kernels.

Python imports this file first where its directory is in PYTHONPATH. vLLM takes Triton for usable on a CPU if it has a backend named
`cpu`; with TRITON_INTERPRET=1 no backend compiles anything.
"""

import importlib.util
import os
import types


class NoDriver:
    """Of a backend that vLLM finds, and that torch.compile finds as little able to run as there is none."""

    def __init__(self) -> None:
        raise RuntimeError("0 active drivers: Triton's kernels are interpreted")

    @staticmethod
    def is_active() -> bool:
        return True


if os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None:
    from triton.backends import backends

    backends.setdefault("cpu", types.SimpleNamespace(driver=NoDriver))
