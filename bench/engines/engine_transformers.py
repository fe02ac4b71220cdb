"""transformers; after `import kvconvert` also with a cache of codes."""

import torch
import transformers

import kvconvert  # noqa: F401  (makes the Auto classes load converted directories)

from model import GIB, Model

transformers.utils.logging.disable_progress_bar()
torch.set_grad_enabled(False)


class Transformers(Model):
    def __init__(self, checkpoint):
        self._model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)

    def logits(self, ids):
        return self._model(torch.tensor([ids])).logits[0].numpy()

    def greedy(self, ids, count):
        prompt = torch.tensor([ids])
        found = self._model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=count,
                                     pad_token_id=0)
        return found[0, len(ids):].tolist()


def load(checkpoint, scratch):
    return Transformers(checkpoint)


def tokens_per_gib(checkpoint, ids):
    cache = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)(torch.tensor([ids])).past_key_values
    if hasattr(cache, "nbytes"):
        num_bytes = cache.nbytes()
    else:
        num_bytes = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    return len(ids) / num_bytes * GIB
