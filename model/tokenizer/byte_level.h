// Byte-level BPE: every byte is one printable character, and words are cut by GPT-2's pattern.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "model/tokenizer/component.h"

namespace kvc {

// End of the piece that starts at text[begin], begin < text.size(), by the pattern
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// `text` is valid UTF-8.
std::size_t gpt2_piece_end(std::string_view text, std::size_t begin);

// The characters that stand for the bytes of `text`, as UTF-8.
std::string bytes_to_characters(std::string_view text);

PreTokenizer make_byte_level_pre_tokenizer(const TokenizerJson& json, const std::string& subject);
TokenDecoder make_byte_level_decoder(const TokenizerJson& json, const std::string& subject);

}  // namespace kvc
