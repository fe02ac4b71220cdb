// Where white space around a place in a text begins and ends.
#pragma once

#include <cstddef>
#include <string_view>

namespace kvc {

// Begin of the white space that ends at text[end], but no earlier than `lowest`.
std::size_t white_space_begin(std::string_view text, std::size_t end, std::size_t lowest);
// End of the white space that begins at text[begin].
std::size_t white_space_end(std::string_view text, std::size_t begin);

}  // namespace kvc
