// Text that normalizers change, with what the pre-tokenizers still want to know of the original.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "model/tokenizer/utf8.h"

namespace kvc {

struct AlignedText {
  std::string text;
  // text[0 .. first_end) stands for the first character of the text as it was typed; 0: none of it
  // does.
  std::size_t first_end = 0;
};

// Replaces each character by what `append(code_point, result)` appends for it.
template <typename Append>
void map_characters(AlignedText& aligned, Append append) {
  std::string result;
  result.reserve(aligned.text.size());
  std::size_t first_end = 0;
  for (const Character& character : Characters(aligned.text)) {
    append(character.value, result);
    if (character.end() <= aligned.first_end) first_end = result.size();
  }
  aligned = {std::move(result), first_end};
}

}  // namespace kvc
