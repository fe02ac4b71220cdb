#include "model/tokenizer/utf8.h"

namespace kvc {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

unsigned byte_at(std::string_view text, std::size_t position) {
  return static_cast<unsigned char>(text[position]);
}

struct LeadByte {
  std::size_t length = 0;  // 0: no sequence starts with it
  unsigned second_min = 0x80, second_max = 0xBF;
};

// Unicode standard, table 3-7.
LeadByte lead_byte(unsigned byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2) return {0};
  if (byte < 0xE0) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0};
}

}  // namespace

Utf8Sequence utf8_sequence(std::string_view text, std::size_t position) {
  const LeadByte lead = lead_byte(byte_at(text, position));
  if (lead.length == 0) return {1, false};
  for (std::size_t i = 1; i < lead.length; ++i) {
    if (position + i >= text.size()) return {i, false};
    const unsigned byte = byte_at(text, position + i);
    const unsigned min = i == 1 ? lead.second_min : 0x80u;
    const unsigned max = i == 1 ? lead.second_max : 0xBFu;
    if (byte < min || byte > max) return {i, false};
  }
  return {lead.length, true};
}

std::optional<std::size_t> first_invalid_utf8(std::string_view text) {
  for (std::size_t position = 0; position < text.size();) {
    const Utf8Sequence sequence = utf8_sequence(text, position);
    if (!sequence.valid) return position;
    position += sequence.length;
  }
  return std::nullopt;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t position = 0; position < text.size();) {
    const Utf8Sequence sequence = utf8_sequence(text, position);
    result += sequence.valid ? text.substr(position, sequence.length) : kReplacement;
    position += sequence.length;
  }
  return result;
}

CodePoint code_point_at(std::string_view text, std::size_t position) {
  const unsigned lead = byte_at(text, position);
  if (lead < 0x80) return {lead, 1};
  const std::size_t length = lead_byte(lead).length;
  char32_t value = lead & (0xFFu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    value = (value << 6) | (byte_at(text, position + i) & 0x3Fu);
  }
  return {value, length};
}

CodePoint code_point_before(std::string_view text, std::size_t position) {
  std::size_t start = position - 1;
  while (start > 0 && (byte_at(text, start) & 0xC0u) == 0x80u) --start;
  return code_point_at(text, start);
}

void Characters::Iterator::read() {
  if (position_ == text_.size()) return;
  const CodePoint code = code_point_at(text_, position_);
  character_ = {code.value, position_, text_.substr(position_, code.length)};
}

std::u32string to_code_points(std::string_view text) {
  std::u32string code_points;
  for (const Character& character : Characters(text)) code_points.push_back(character.value);
  return code_points;
}

void append_utf8(std::string& text, char32_t code_point) {
  const auto put = [&text](char32_t byte) { text += static_cast<char>(byte); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | (code_point >> 6));
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | (code_point >> 12));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | (code_point >> 18));
    put(0x80 | ((code_point >> 12) & 0x3F));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

}  // namespace kvc
