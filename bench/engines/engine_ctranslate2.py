"""CTranslate2, by its own converter."""

import ctranslate2
import numpy
import tokenizers

from model import Model


class CTranslate2(Model):
    def __init__(self, checkpoint, scratch):
        folder = scratch / "ctranslate2"
        ctranslate2.converters.TransformersConverter(str(checkpoint)).convert(str(folder), quantization="float32")
        self._model = ctranslate2.Generator(str(folder), compute_type="float32")
        vocabulary = tokenizers.Tokenizer.from_file(str(checkpoint / "tokenizer.json")).get_vocab()
        self._words = {token: word for word, token in vocabulary.items()}  # generation takes no ids

    def logits(self, ids):
        return numpy.array(self._model.forward_batch([ids]))[0]

    def greedy(self, ids, count):
        found = self._model.generate_batch([[self._words[i] for i in ids]], max_length=count, beam_size=1, sampling_topk=1,
                                           include_prompt_in_result=False)
        return found[0].sequences_ids[0]


def load(checkpoint, scratch):
    return CTranslate2(checkpoint, scratch)
