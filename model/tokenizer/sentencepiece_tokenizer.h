// tokenizer.model through the sentencepiece library, with the conventions of transformers'
// sentencepiece tokenizers (LlamaTokenizer, GemmaTokenizer): special tokens are cut out of the text
// first, the model sees the stretches between them.
#pragma once

#include <filesystem>
#include <memory>

#include "model/tokenizer/tokenizer_backend.h"

namespace kvc {

// Reads tokenizer.model and the settings beside it. Its hash covers both.
std::unique_ptr<TokenizerBackend> read_sentencepiece_tokenizer(
    const std::filesystem::path& directory);

}  // namespace kvc
