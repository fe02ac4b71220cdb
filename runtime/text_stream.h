// Generated tokens as text, piece by piece: only complete characters, with the spaces that earlier
// tokens require, up to a stop string.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/tokenizer/tokenizer.h"
#include "runtime/stop_filter.h"

namespace kvc {

class TextStream {
 public:
  // `tokenizer` must outlive the stream.
  TextStream(const Tokenizer& tokenizer, const std::vector<std::int64_t>& prompt);

  std::string push(std::int64_t token);  // text that became complete; may be empty
  std::string finish();                  // the rest, incomplete characters included

 private:
  std::string take(bool even_incomplete);
  const Tokenizer& tokenizer_;
  std::vector<std::int64_t> ids_;  // the prompt's last tokens, then what was pushed
  std::size_t context_ = 0;        // ids_[context_ .. printed_) are decoded for context only
  std::size_t printed_ = 0;
};

// The text that continues a prompt, up to the first stop string.
class Continuation {
 public:
  // `tokenizer` must outlive the continuation.
  Continuation(const Tokenizer& tokenizer, const std::vector<std::int64_t>& prompt,
               std::vector<std::string> stops)
      : stream_(tokenizer, prompt), filter_(std::move(stops)) {}

  // Text that is now certain; may be empty.
  std::string push(std::int64_t token) { return keep(filter_.push(stream_.push(token))); }
  std::string finish();
  bool stopped() const { return filter_.stopped(); }  // by a stop string
  const std::string& text() const { return text_; }   // all that was returned

 private:
  std::string keep(std::string piece);
  TextStream stream_;
  StopFilter filter_;
  std::string text_;
};

// Prints to stdout at once, without line buffering.
void print_now(std::string_view text);

}  // namespace kvc
