// The parts of tokenizer.json, made from their JSON. Each refuses what it does not support by its name.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "model/tokenizer/component.h"

namespace kvc {

// "normalizer": text to text.
TextNormalizer make_normalizer(const TokenizerJson& json, const std::string& subject);

// "pre_tokenizer": text to the pieces within which tokens may merge.
PreTokenizer make_pre_tokenizer(const TokenizerJson& json, const std::string& subject);

// "post_processor": what is put around the ids of one text.
PostProcessor make_post_processor(const TokenizerJson& json, const std::string& subject);

// "decoder": tokens to text.
TokenDecoder make_decoder(const TokenizerJson& json, const std::string& subject);

// Pre-tokenizers that cut text at a pattern or at characters of one kind.
PreTokenizer make_split(const TokenizerJson& json, const std::string& subject);
PreTokenizer make_digits(const TokenizerJson& json, const std::string& subject);
PreTokenizer make_punctuation(const TokenizerJson& json, const std::string& subject);
PreTokenizer make_delimiter(const TokenizerJson& json, const std::string& subject);
PreTokenizer make_whitespace(const TokenizerJson& json, const std::string& subject);
PreTokenizer make_whitespace_split(const TokenizerJson& json, const std::string& subject);

// Metaspace: spaces become a visible character, at which words are cut, and back.
PreTokenizer make_metaspace_pre_tokenizer(const TokenizerJson& json, const std::string& subject);
TokenDecoder make_metaspace_decoder(const TokenizerJson& json, const std::string& subject);

// Byte-level BPE: every byte is one printable character, and words are cut by GPT-2's pattern.
PreTokenizer make_byte_level_pre_tokenizer(const TokenizerJson& json, const std::string& subject);
TokenDecoder make_byte_level_decoder(const TokenizerJson& json, const std::string& subject);
// End of the piece that starts at text[begin], begin < text.size(), by the pattern
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// `text` is valid UTF-8.
std::size_t gpt2_piece_end(std::string_view text, std::size_t begin);
// The characters that stand for the bytes of `text`, as UTF-8.
std::string bytes_to_characters(std::string_view text);

}  // namespace kvc
