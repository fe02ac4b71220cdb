"""llama.cpp through llama-cpp-python, on a GGUF file that make_gguf.py writes."""

import pathlib
import subprocess
import sys

import llama_cpp
import numpy

from model import Model

MAKE_GGUF = pathlib.Path(__file__).resolve().parents[1] / "make_gguf.py"


class LlamaCpp(Model):
    def __init__(self, checkpoint, scratch):
        path = scratch / "model.gguf"
        subprocess.run([sys.executable, MAKE_GGUF, checkpoint, path, "--type", "f32"], check=True)
        self._model = llama_cpp.Llama(str(path), n_ctx=1024, n_batch=1024, n_ubatch=1024, logits_all=True, flash_attn=False,
                                      type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32, verbose=False)

    def logits(self, ids):
        self._model.reset()
        self._model.eval(ids)
        return numpy.array(self._model.scores[:len(ids)])

    def greedy(self, ids, count):
        found = [int(self.logits(ids)[-1].argmax())]
        while len(found) < count:
            self._model.eval(found[-1:])
            found.append(int(self._model.scores[self._model.n_tokens - 1].argmax()))
        return found


def load(checkpoint, scratch):
    return LlamaCpp(checkpoint, scratch)
