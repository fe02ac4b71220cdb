"""OpenVINO, on the ONNX graph that torch exports."""

import numpy
import openvino

from model import Model
from onnx_graph import export_onnx


class OpenVino(Model):
    def __init__(self, checkpoint, scratch):
        path = scratch / "model.onnx"
        export_onnx(checkpoint, path)
        # Without the hint it computes in bfloat16 where the processor can.
        self._model = openvino.Core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def logits(self, ids):
        return self._model({"input_ids": numpy.array([ids])})["logits"][0]


def load(checkpoint, scratch):
    return OpenVino(checkpoint, scratch)
