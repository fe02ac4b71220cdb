#include "model/token_input.h"

#include "core/error.h"

namespace kvc {

TokenSet load_calibration_tokens(const TokenInput& input, const Checkpoint& checkpoint,
                                 std::int64_t vocab_size) {
  if (input.tokens.empty()) {
    KVC_CHECK_USAGE(
        !input.texts.self,
        "--calibration self: kvconvert writes that text; run kvconvert --calibration self "
        "--work DIR and give --tokens DIR/tokens.h5");
    TextOptions text = input.text;
    text.builtin = input.texts.builtin;
    return load_token_set(input.texts.files, Tokenizer::load(checkpoint.directory()), vocab_size,
                          text, "calibration");
  }
  TokenSet tokens = read_token_set(input.tokens, vocab_size);
  KVC_CHECK(tokens.split == "calibration",
            "{}: of the {} split; statistics come from text that nothing is judged on, so give a "
            "token set of the calibration split",
            input.tokens.string(), tokens.split);
  const std::filesystem::path& directory = checkpoint.directory();
  KVC_CHECK(
      !Tokenizer::exists(directory) || Tokenizer::hash_of(directory) == tokens.tokenizer_hash,
      "{}: made by another tokenizer than the one in {}; tokenize the text for this checkpoint",
      input.tokens.string(), directory.string());
  KVC_CHECK(!tokens.sequences.empty(), "{}: no tokens", input.tokens.string());
  return tokens;
}

}  // namespace kvc
