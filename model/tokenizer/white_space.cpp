#include "model/tokenizer/white_space.h"

#include "model/tokenizer/unicode.h"
#include "model/tokenizer/utf8.h"

namespace kvc {

std::size_t white_space_begin(std::string_view text, std::size_t end, std::size_t lowest) {
  while (end > lowest) {
    const CodePoint code = code_point_before(text, end);
    if (!is_white_space(code.value)) break;
    end -= code.length;
  }
  return end;
}

std::size_t white_space_end(std::string_view text, std::size_t begin) {
  while (begin < text.size()) {
    const CodePoint code = code_point_at(text, begin);
    if (!is_white_space(code.value)) break;
    begin += code.length;
  }
  return begin;
}

}  // namespace kvc
