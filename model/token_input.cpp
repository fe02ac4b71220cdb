#include "model/token_input.h"

#include "core/error.h"
#include "core/hash.h"

namespace kvc {

TokenSet load_calibration_tokens(const TokenInput& input, const Checkpoint& checkpoint,
                                 std::int64_t vocab_size) {
  if (input.tokens.empty()) {
    return load_token_set(input.texts, Tokenizer::load(checkpoint.directory()), vocab_size,
                          input.text, "calibration");
  }
  TokenSet tokens = read_token_set(input.tokens, vocab_size);
  KVC_CHECK(tokens.split == "calibration",
            "{}: of the {} split; statistics come from text that nothing is judged on, so give a "
            "token set of the calibration split",
            input.tokens.string(), tokens.split);
  const std::filesystem::path tokenizer = checkpoint.directory() / "tokenizer.json";
  KVC_CHECK(
      !std::filesystem::exists(tokenizer) || sha256_hex_of_file(tokenizer) == tokens.tokenizer_hash,
      "{}: made by another tokenizer than {}; tokenize the text for this checkpoint",
      input.tokens.string(), tokenizer.string());
  KVC_CHECK(!tokens.sequences.empty(), "{}: no tokens", input.tokens.string());
  return tokens;
}

}  // namespace kvc
