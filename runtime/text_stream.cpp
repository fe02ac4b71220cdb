#include "runtime/text_stream.h"

#include <algorithm>
#include <cstdio>

namespace kvc {
namespace {

constexpr std::size_t kContextTokens = 8;
constexpr std::string_view kReplacement =
    "\xEF\xBF\xBD";  // U+FFFD: bytes of an incomplete character

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0u) == 0x80u; }

}  // namespace

TextStream::TextStream(const Tokenizer& tokenizer, const std::vector<std::int64_t>& prompt)
    : tokenizer_(tokenizer) {
  const std::size_t count = std::min(prompt.size(), kContextTokens);
  ids_.assign(prompt.end() - static_cast<std::ptrdiff_t>(count), prompt.end());
  printed_ = ids_.size();
}

std::string TextStream::push(std::int64_t token) {
  ids_.push_back(token);
  return take(/*even_incomplete=*/false);
}

std::string TextStream::finish() { return take(/*even_incomplete=*/true); }

std::string TextStream::take(bool even_incomplete) {
  const auto begin = ids_.begin() + static_cast<std::ptrdiff_t>(context_);
  const std::string before =
      tokenizer_.decode({begin, ids_.begin() + static_cast<std::ptrdiff_t>(printed_)});
  const std::string after = tokenizer_.decode({begin, ids_.end()});
  if (after.size() <= before.size() || (!even_incomplete && after.ends_with(kReplacement))) {
    return "";
  }
  context_ = printed_;
  printed_ = ids_.size();
  // With byte fallback a bad byte spoils the good ones before it, also those that were printed; what
  // follows them starts with a whole character all the same.
  std::size_t fresh = before.size();
  while (fresh < after.size() && is_continuation(after[fresh])) {
    ++fresh;
  }
  return after.substr(fresh);
}

std::string Continuation::finish() {
  std::string rest = filter_.push(stream_.finish());
  return keep(rest + filter_.finish());
}

std::string Continuation::keep(std::string piece) {
  text_ += piece;
  return piece;
}

void print_now(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace kvc
