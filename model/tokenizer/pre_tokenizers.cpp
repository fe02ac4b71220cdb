#include "model/tokenizer/pre_tokenizers.h"

#include "model/tokenizer/byte_level.h"

namespace kvc {

namespace {

constexpr ComponentRow<PreTokenizer> kPreTokenizers[] = {
    {"ByteLevel", make_byte_level_pre_tokenizer},
};

}  // namespace

PreTokenizer make_pre_tokenizer(const TokenizerJson& json, const std::string& subject) {
  return make_component<PreTokenizer>(json, kPreTokenizers, subject);
}

}  // namespace kvc
