"""The engines that check_engines.py runs. A new one is a row here and a file engine_NAME.py beside it."""

import dataclasses
from collections.abc import Callable

from environments import engine_python, peers_python, pinned, vllm_script


@dataclasses.dataclass(frozen=True)
class Engine:
    name: str
    title: str
    packages: tuple[str, ...] = ()  # as versions.env pins them; the first one's version is shown
    compiled: tuple[str, ...] = ()  # those of them that come as source and are compiled
    there: Callable | None = None  # what runs Python with the engine where scripts/setup.sh installs it
    coded: bool = False  # it also runs conversions with the small cache, and tells how many tokens fit

    def interpreter(self):
        """What runs a Python script with this engine, installed if need be. Raises InstallError."""
        return self.there() if self.there else engine_python(self.name, self.packages, self.compiled)

    @property
    def version(self):
        return pinned(self.packages[0]) if self.packages else "this tree"


REFERENCE = Engine("kvrun", "kvrun", there=peers_python, coded=True)
ENGINES = (
    Engine("transformers", "transformers", ("transformers",), there=peers_python, coded=True),
    Engine("vllm", "vLLM", ("vllm",), there=vllm_script, coded=True),
    Engine("ctranslate2", "CTranslate2", ("ctranslate2",)),
    Engine("onnxruntime", "ONNX Runtime", ("onnxruntime", "onnx", "onnxscript")),
    Engine("openvino", "OpenVINO", ("openvino", "onnx", "onnxscript")),
    Engine("llama_cpp", "llama-cpp-python", ("llama-cpp-python", "gguf"), compiled=("llama-cpp-python",)),
)
