// Python's string functions on UTF-8.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvc::jinja {

// What Jinja's grammar and methods take for a digit.
constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Every function takes valid UTF-8. Letters outside of ASCII keep their case.
std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string capitalize(std::string_view text);
std::string title(std::string_view text);  // str.title

enum class Sides { kBoth, kLeft, kRight };
// Without white space, or without the characters of `characters`, at its ends.
std::string strip(std::string_view text, const std::string* characters, Sides sides);

// Where `part` stands first, from `at` on, or last; npos: nowhere. Times grow with the sum of both lengths, not with the
// product.
std::size_t find_text(std::string_view text, std::string_view part, std::size_t at = 0);
std::size_t find_last_text(std::string_view text, std::string_view part);
// How often, without overlaps; `part` is not empty.
std::size_t count_of(std::string_view text, std::string_view part);
std::size_t count_spaces(std::string_view text);

// At most `count` times; negative: everywhere.
std::string replace(const std::string& text, const std::string& from, const std::string& to,
                    std::int64_t count);
// At most `count` cuts, from the right if `from_right`; negative: everywhere.
std::vector<std::string> split(const std::string& text, const std::string& separator,
                               std::int64_t count, bool from_right);
std::vector<std::string> split_at_space(std::string_view text, std::int64_t count, bool from_right);
std::vector<std::string> split_lines(const std::string& text, bool keep_ends = false);

}  // namespace kvc::jinja
