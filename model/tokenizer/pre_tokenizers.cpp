#include "model/tokenizer/parts.h"

#include "model/tokenizer/pieces.h"

namespace kvc {

namespace {

PreTokenizer make_pre_tokenizers(const TokenizerJson& json, const std::string& subject) {
  return [members = make_members<PreTokenizer>(json, "pretokenizers", make_pre_tokenizer, subject)](
             Pieces& pieces, SearchBudget& budget) {
    for (const PreTokenizer& member : members) member(pieces, budget);
  };
}

constexpr ComponentRow<PreTokenizer> kPreTokenizers[] = {
    {"ByteLevel", make_byte_level_pre_tokenizer},
    {"CharDelimiterSplit", make_delimiter},
    {"Digits", make_digits},
    {"Metaspace", make_metaspace_pre_tokenizer},
    {"Punctuation", make_punctuation},
    {"Sequence", make_pre_tokenizers},
    {"Split", make_split},
    {"Whitespace", make_whitespace},
    {"WhitespaceSplit", make_whitespace_split},
};

}  // namespace

PreTokenizer make_pre_tokenizer(const TokenizerJson& json, const std::string& subject) {
  return make_component<PreTokenizer>(json, kPreTokenizers, subject);
}

}  // namespace kvc
