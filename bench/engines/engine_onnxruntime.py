"""ONNX Runtime, on a graph that torch exports."""

import numpy
import onnxruntime

from model import Model
from onnx_graph import export_onnx


class OnnxRuntime(Model):
    def __init__(self, checkpoint, scratch):
        path = scratch / "model.onnx"
        export_onnx(checkpoint, path)
        self._session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def logits(self, ids):
        return self._session.run(["logits"], {"input_ids": numpy.array([ids])})[0][0]


def load(checkpoint, scratch):
    return OnnxRuntime(checkpoint, scratch)
