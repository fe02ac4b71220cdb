"""A checkpoint as an ONNX graph without a cache: ids [1, num_tokens] to logits [1, num_tokens, vocab_size]."""

import torch
import transformers


class _Logits(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids):
        return self.model(input_ids=input_ids, use_cache=False).logits


def export_onnx(checkpoint, path):
    """Writes the graph to `path`, in float32."""
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, attn_implementation="eager")
    length = torch.export.Dim("num_tokens", min=2, max=model.config.max_position_embeddings)
    torch.onnx.export(_Logits(model.eval()), (torch.arange(1, 13)[None],), path, input_names=["input_ids"], output_names=["logits"],
                      dynamic_shapes={"input_ids": {1: length}}, dynamo=True, verbose=False)
