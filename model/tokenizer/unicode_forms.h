// Unicode normalization forms, as the tokenizers library has them.
#pragma once

#include <string>
#include <string_view>

namespace kvc {

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };

// `text` is valid UTF-8.
std::string to_unicode_form(std::string_view text, UnicodeForm form);

}  // namespace kvc
