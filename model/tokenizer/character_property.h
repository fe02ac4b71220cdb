// The sets of characters that patterns name: \p{L}, \p{Han}, \w ...
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/unicode_ranges.h"

namespace kvc {

// Sorted, without overlaps; nullopt: there is no table of that name. Case, spaces, _ and - in names
// mean nothing. In a bracketed class Oniguruma's Word has fewer members than by itself.
std::optional<std::vector<CodePointRange>> property_ranges(std::string_view name, bool in_class);

std::vector<CodePointRange> complement(const std::vector<CodePointRange>& ranges);

}  // namespace kvc
