// What characters are to the parts of the tokenizers library, each with its own Unicode version.
#pragma once

#include <string>

namespace kvc {

enum class CharacterClass { kLetter, kNumber, kWhiteSpace, kOther };  // \p{L}, \p{N}, \s, the rest

CharacterClass character_class(char32_t code_point);
bool is_white_space(char32_t code_point);
bool is_word_character(char32_t code_point);  // \w
bool is_numeric(char32_t code_point);         // to the pre-tokenizer Digits
bool is_punctuation(char32_t code_point);     // to the pre-tokenizer Punctuation
bool is_combining_mark(char32_t code_point);  // to the normalizer StripAccents
// Whether normalization forms decompose, compose or reorder it.
bool is_normalizing(char32_t code_point);

void append_lowercase(std::string& text, char32_t code_point);

}  // namespace kvc
