#include "model/tokenizer/decoders.h"

#include <algorithm>

#include "model/tokenizer/byte_level.h"
#include "model/tokenizer/byte_token.h"
#include "model/tokenizer/replace.h"
#include "model/tokenizer/utf8.h"

namespace kvc {

namespace {

using Tokens = std::vector<std::string>;

TokenDecoder make_replace(const TokenizerJson& json, const std::string& subject) {
  return [replacement = read_replacement(json, subject)](Tokens tokens) {
    for (std::string& token : tokens) token = replacement.apply(token);
    return tokens;
  };
}

TokenDecoder make_fuse(const TokenizerJson&, const std::string&) {
  return [](const Tokens& tokens) {
    std::string text;
    for (const std::string& token : tokens) text += token;
    return Tokens{text};
  };
}

// A run of byte tokens that is no valid UTF-8 becomes one U+FFFD per byte.
void flush_bytes(std::string& bytes, Tokens& pieces) {
  if (bytes.empty()) return;
  if (first_invalid_utf8(bytes)) {
    pieces.insert(pieces.end(), bytes.size(), "\xEF\xBF\xBD");
  } else {
    pieces.push_back(bytes);
  }
  bytes.clear();
}

TokenDecoder make_byte_fallback(const TokenizerJson&, const std::string&) {
  return [](const Tokens& tokens) {
    Tokens pieces;
    std::string bytes;
    for (const std::string& token : tokens) {
      if (const auto byte = byte_of_token(token)) {
        bytes += *byte;
        continue;
      }
      flush_bytes(bytes, pieces);
      pieces.push_back(token);
    }
    flush_bytes(bytes, pieces);
    return pieces;
  };
}

std::string strip(std::string text, const std::string& content, std::size_t start,
                  std::size_t stop) {
  for (; start > 0 && text.starts_with(content); --start) text.erase(0, content.size());
  for (; stop > 0 && text.ends_with(content); --stop) text.erase(text.size() - content.size());
  return text;
}

TokenDecoder make_strip(const TokenizerJson& json, const std::string& subject) {
  const auto content = component_value<std::string>(json, "content", subject);
  const auto start = component_value<std::size_t>(json, "start", subject);
  const auto stop = component_value<std::size_t>(json, "stop", subject);
  KVC_CHECK(!content.empty() && code_point_at(content, 0).length == content.size(),
            "{}: \"content\" is \"{}\", expected one character", subject, content);
  return [content, start, stop](Tokens tokens) {
    for (std::string& token : tokens) token = strip(std::move(token), content, start, stop);
    return tokens;
  };
}

TokenDecoder make_decoders(const TokenizerJson& json, const std::string& subject) {
  return make_sequence<TokenDecoder>(json, "decoders", make_decoder, subject);
}

constexpr ComponentRow<TokenDecoder> kDecoders[] = {
    {"ByteFallback", make_byte_fallback},
    {"ByteLevel", make_byte_level_decoder},
    {"Fuse", make_fuse},
    {"Replace", make_replace},
    {"Sequence", make_decoders},
    {"Strip", make_strip},
};

}  // namespace

TokenDecoder make_decoder(const TokenizerJson& json, const std::string& subject) {
  return make_component<TokenDecoder>(json, kDecoders, subject);
}

}  // namespace kvc
