// UTF-8, by the rules of the Unicode standard: no overlong forms, no surrogates, at most U+10FFFF.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace kvc {

struct Utf8Sequence {
  std::size_t length = 0;  // bytes; of an invalid sequence: its maximal subpart, at least 1
  bool valid = false;
};

// The sequence that starts at text[position]; position < text.size().
Utf8Sequence utf8_sequence(std::string_view text, std::size_t position);
// Offset of the first byte that is not part of a valid sequence.
std::optional<std::size_t> first_invalid_utf8(std::string_view text);
// Each maximal invalid subpart becomes one U+FFFD.
std::string replace_invalid_utf8(std::string_view text);

struct CodePoint {
  char32_t value = 0;
  std::size_t length = 0;  // bytes
};

// The code point at text[position]; `text` is valid and position is at a code point's start.
CodePoint code_point_at(std::string_view text, std::size_t position);
// The code point that ends before text[position], position > 0; `text` is valid.
CodePoint code_point_before(std::string_view text, std::size_t position);
void append_utf8(std::string& text, char32_t code_point);

// A character and where it stands in its text.
struct Character {
  char32_t value = 0;
  std::size_t begin = 0;
  std::string_view bytes;

  std::size_t end() const { return begin + bytes.size(); }
};

// The characters of a valid text in turn; the text must outlive the loop: for (const Character& c : Characters(text)).
class Characters {
 public:
  explicit Characters(std::string_view text) : text_(text) {}

  class Iterator {
   public:
    Iterator(std::string_view text, std::size_t position) : text_(text), position_(position) {
      read();
    }
    const Character& operator*() const { return character_; }
    Iterator& operator++() {
      position_ = character_.end();
      read();
      return *this;
    }
    bool operator!=(const Iterator& other) const { return position_ != other.position_; }

   private:
    void read();

    std::string_view text_;
    std::size_t position_;
    Character character_;
  };

  Iterator begin() const { return {text_, 0}; }
  Iterator end() const { return {text_, text_.size()}; }

 private:
  std::string_view text_;
};

std::u32string to_code_points(std::string_view text);  // `text` is valid

}  // namespace kvc
