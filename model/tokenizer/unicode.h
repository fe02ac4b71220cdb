// What characters are to the parts of the tokenizers library, each with its own Unicode version.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

// Begin of the white space that ends at text[end], but no earlier than `lowest`.
std::size_t white_space_begin(std::string_view text, std::size_t end, std::size_t lowest);
// End of the white space that begins at text[begin].
std::size_t white_space_end(std::string_view text, std::size_t begin);

struct CodePointRange {
  char32_t first, last;
};

// What patterns name: \p{L}, \p{Han}, \w ... Sorted ranges that do not touch; nullopt: there is no table of that name.
// Case, spaces, _ and - in names mean nothing. In a bracketed class Oniguruma's Word has fewer members than by itself.
std::optional<std::vector<CodePointRange>> property_ranges(std::string_view name, bool in_class);
std::vector<CodePointRange> complement(const std::vector<CodePointRange>& ranges);

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };

// `text` is valid UTF-8.
std::string to_unicode_form(std::string_view text, UnicodeForm form);

}  // namespace kvc
