#include "model/tokenizer/parts.h"

#include <memory>
#include <utility>

#include "model/tokenizer/text_pattern.h"
#include "model/tokenizer/utf8.h"
#include "model/tokenizer/vocabulary.h"

namespace kvc {

namespace {

using Tokens = std::vector<std::string>;

TokenDecoder make_replace_decoder(const TokenizerJson& json, const std::string& subject) {
  return [replacement = std::make_shared<const Replacement>(json, subject)](Tokens& tokens) {
    std::size_t num_bytes = 0;
    for (const std::string& token : tokens) num_bytes += token.size();
    SearchBudget budget(num_bytes);
    for (std::string& token : tokens) {
      AlignedText aligned{std::move(token)};
      replacement->apply(aligned, budget);
      token = std::move(aligned.text);
    }
  };
}

TokenDecoder make_fuse(const TokenizerJson&, const std::string&) {
  return [](Tokens& tokens) {
    std::string text;
    for (const std::string& token : tokens) text += token;
    tokens = {std::move(text)};
  };
}

// The suffix that marks the end of a word becomes a space, or nothing at the end.
TokenDecoder make_bpe(const TokenizerJson& json, const std::string& subject) {
  const auto suffix = component_value<std::string>(json, "suffix", subject);
  KVC_CHECK(!suffix.empty(), "{}: the suffix is empty", subject);
  return [suffix](Tokens& tokens) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const std::string between = i + 1 == tokens.size() ? "" : " ";
      std::string text;
      std::size_t begin = 0;
      for (std::size_t match; (match = tokens[i].find(suffix, begin)) != std::string::npos;) {
        text += tokens[i].substr(begin, match - begin) + between;
        begin = match + suffix.size();
      }
      tokens[i] = text + tokens[i].substr(begin);
    }
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
  return [](Tokens& tokens) {
    Tokens pieces;
    std::string bytes;
    for (std::string& token : tokens) {
      if (const auto byte = byte_of_token(token)) {
        bytes += *byte;
        continue;
      }
      flush_bytes(bytes, pieces);
      pieces.push_back(std::move(token));
    }
    flush_bytes(bytes, pieces);
    tokens = std::move(pieces);
  };
}

void strip(std::string& text, const std::string& content, std::size_t start, std::size_t stop) {
  std::size_t begin = 0, end = text.size();
  const std::string_view view = text;
  for (; start > 0 && view.substr(begin, end - begin).starts_with(content); --start) {
    begin += content.size();
  }
  for (; stop > 0 && view.substr(begin, end - begin).ends_with(content); --stop) {
    end -= content.size();
  }
  text = text.substr(begin, end - begin);
}

TokenDecoder make_strip_decoder(const TokenizerJson& json, const std::string& subject) {
  std::string content;
  append_utf8(content, component_character(json, "content", subject));
  const auto start = component_value<std::size_t>(json, "start", subject);
  const auto stop = component_value<std::size_t>(json, "stop", subject);
  return [content, start, stop](Tokens& tokens) {
    for (std::string& token : tokens) strip(token, content, start, stop);
  };
}

TokenDecoder make_decoders(const TokenizerJson& json, const std::string& subject) {
  return [members =
              make_members<TokenDecoder>(json, "decoders", make_decoder, subject)](Tokens& tokens) {
    for (const TokenDecoder& member : members) member(tokens);
  };
}

constexpr ComponentRow<TokenDecoder> kDecoders[] = {
    {"BPEDecoder", make_bpe},
    {"ByteFallback", make_byte_fallback},
    {"ByteLevel", make_byte_level_decoder},
    {"Fuse", make_fuse},
    {"Metaspace", make_metaspace_decoder},
    {"Replace", make_replace_decoder},
    {"Sequence", make_decoders},
    {"Strip", make_strip_decoder},
};

}  // namespace

TokenDecoder make_decoder(const TokenizerJson& json, const std::string& subject) {
  return make_component<TokenDecoder>(json, kDecoders, subject);
}

}  // namespace kvc
