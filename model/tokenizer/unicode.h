// The Unicode classes that the tokenizers library's patterns use, as that library has them.
#pragma once

namespace kvc {

enum class CharacterClass { kLetter, kNumber, kWhiteSpace, kOther };  // \p{L}, \p{N}, \s, the rest

CharacterClass character_class(char32_t code_point);
bool is_white_space(char32_t code_point);
bool is_word_character(char32_t code_point);  // \w

}  // namespace kvc
