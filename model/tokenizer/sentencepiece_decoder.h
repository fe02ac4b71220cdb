// Ids to text, as transformers' sentencepiece tokenizers do it without spaces between special
// tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/tokenizer/sentencepiece_vocabulary.h"

namespace kvc {

std::string sentencepiece_text(const SentencepieceVocabulary& vocabulary,
                               const std::vector<std::int64_t>& ids, bool skip_special_tokens);

}  // namespace kvc
