// Generated tokens as text, piece by piece: only complete characters, with the spaces that the
// tokens before them ask for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/tokenizer/tokenizer.h"

namespace kvc {

class TextStream {
 public:
  // `tokenizer` must outlive the stream.
  TextStream(const Tokenizer& tokenizer, const std::vector<std::int64_t>& prompt);

  std::string push(std::int64_t token);  // text that became complete; may be empty
  std::string finish();                  // what is left, incomplete characters included

 private:
  std::string take(bool even_incomplete);
  const Tokenizer& tokenizer_;
  std::vector<std::int64_t> ids_;  // the prompt's last tokens, then what was pushed
  std::size_t context_ = 0;        // ids_[context_ .. printed_) are decoded for context only
  std::size_t printed_ = 0;
};

// The continuation as one string.
std::string continuation_text(const Tokenizer& tokenizer, const std::vector<std::int64_t>& prompt,
                              const std::vector<std::int64_t>& tokens);

}  // namespace kvc
