// Patterns in Oniguruma's syntax, rewritten so that they need none of its Unicode tables.
#pragma once

#include <string>

namespace kvc {

// Spells the characters of \p{...}, \w, \d and [[:alpha:]] out. Throws Error for what depends on the
// Unicode version in ways that cannot be spelled out, and for properties without a table.
std::string expand_unicode_classes(const std::string& pattern, const std::string& subject);

}  // namespace kvc
