#include "model/chat/jinja_strings.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <unordered_set>

#include "model/tokenizer/unicode.h"
#include "model/tokenizer/utf8.h"

namespace kvc::jinja {

namespace {

constexpr auto kNotFound = std::string_view::npos;

char ascii_upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; }
char ascii_lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }
bool is_letter(char c) {
  return static_cast<unsigned char>(c) >= 0x80 || ascii_upper(c) != ascii_lower(c);
}

// What Python's str methods take for white space.
bool is_space(char32_t code) { return is_white_space(code) || (code >= 0x1C && code <= 0x1F); }

template <typename Goes>
std::string_view strip_where(std::string_view text, Sides sides, const Goes& goes) {
  while (sides != Sides::kRight && !text.empty()) {
    const CodePoint code = code_point_at(text, 0);
    if (!goes(code.value)) break;
    text.remove_prefix(code.length);
  }
  while (sides != Sides::kLeft && !text.empty()) {
    const CodePoint code = code_point_before(text, text.size());
    if (!goes(code.value)) break;
    text.remove_suffix(code.length);
  }
  return text;
}

std::string_view strip_spaces(std::string_view text, Sides sides) {
  return strip_where(text, sides, [](char32_t code) { return is_space(code); });
}

std::string mirror(std::string_view text) { return {text.rbegin(), text.rend()}; }

}  // namespace

std::string upper(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), ascii_upper);
  return result;
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), ascii_lower);
  return result;
}

std::string capitalize(std::string_view text) {
  std::string result = lower(text);
  if (!result.empty()) result[0] = ascii_upper(result[0]);
  return result;
}

std::string title(std::string_view text) {
  std::string result;
  for (const char c : text) {
    const bool inside = !result.empty() && is_letter(result.back());
    result += inside ? ascii_lower(c) : ascii_upper(c);
  }
  return result;
}

std::string strip(std::string_view text, const std::string* characters, Sides sides) {
  if (characters == nullptr) return std::string(strip_spaces(text, sides));
  std::unordered_set<char32_t> stripped;
  for (const Character& character : Characters(*characters)) stripped.insert(character.value);
  return std::string(
      strip_where(text, sides, [&stripped](char32_t code) { return stripped.contains(code); }));
}

std::size_t find_text(std::string_view text, std::string_view part, std::size_t at) {
  if (at > text.size() || part.empty()) return at > text.size() ? kNotFound : at;
  if (part.size() == 1) return text.find(part.front(), at);
  const void* found = ::memmem(text.data() + at, text.size() - at, part.data(), part.size());
  return found == nullptr ? kNotFound
                          : static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
}

std::size_t find_last_text(std::string_view text, std::string_view part) {
  const std::size_t mirrored = find_text(mirror(text), mirror(part));
  return mirrored == kNotFound ? kNotFound : text.size() - mirrored - part.size();
}

std::size_t count_of(std::string_view text, std::string_view part) {
  std::size_t count = 0;
  for (std::size_t at = 0; (at = find_text(text, part, at)) != kNotFound; at += part.size())
    ++count;
  return count;
}

std::size_t count_spaces(std::string_view text) {
  std::size_t count = 0;
  for (const Character& character : Characters(text)) count += is_space(character.value) ? 1 : 0;
  return count;
}

std::string replace(const std::string& text, const std::string& from, const std::string& to,
                    std::int64_t count) {
  std::string result;
  std::size_t at = 0;
  while (count != 0) {
    const std::size_t next = find_text(text, from, at);
    if (next == std::string::npos || (from.empty() && next >= text.size())) break;
    // An empty `from` stands before every character and at the end.
    const std::size_t end =
        from.empty() ? next + code_point_at(text, next).length : next + from.size();
    result += text.substr(at, next - at) + to;
    if (from.empty()) result += text.substr(next, end - next);
    at = end;
    count -= count > 0;
  }
  if (from.empty() && count != 0) result += to;
  return result + text.substr(at);
}

std::vector<std::string> split(const std::string& text, const std::string& separator,
                               std::int64_t count, bool from_right) {
  std::vector<std::string> parts;
  if (from_right) {
    parts = split(mirror(text), mirror(separator), count, false);
    for (std::string& part : parts) part = mirror(part);
    std::reverse(parts.begin(), parts.end());
    return parts;
  }
  std::size_t at = 0;
  for (std::size_t next; count != 0 && (next = find_text(text, separator, at)) != kNotFound;
       --count) {
    parts.push_back(text.substr(at, next - at));
    at = next + separator.size();
  }
  parts.push_back(text.substr(at));
  return parts;
}

std::vector<std::string> split_at_space(std::string_view text, std::int64_t count,
                                        bool from_right) {
  std::vector<std::string> parts;
  const Sides outer = from_right ? Sides::kRight : Sides::kLeft;
  std::string_view rest = strip_spaces(text, outer);
  while (!rest.empty()) {
    if (count == 0) {
      parts.emplace_back(rest);  // the side that was not looked at keeps its white space
      break;
    }
    std::size_t cut = from_right ? rest.size() : 0;
    while (from_right ? cut > 0 : cut < rest.size()) {
      const CodePoint code = from_right ? code_point_before(rest, cut) : code_point_at(rest, cut);
      if (is_space(code.value)) break;
      cut = from_right ? cut - code.length : cut + code.length;
    }
    parts.emplace_back(from_right ? rest.substr(cut) : rest.substr(0, cut));
    rest = strip_spaces(from_right ? rest.substr(0, cut) : rest.substr(cut), outer);
    --count;
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string> split_lines(const std::string& text, bool keep_ends) {
  std::vector<std::string> lines;
  std::size_t begin = 0;
  for (const Character& character : Characters(text)) {
    const char32_t c = character.value;
    const bool is_end = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 ||
                        c == 0x2028 || c == 0x2029;
    if (!is_end || character.begin < begin) continue;  // before `begin` lies the "\n" of "\r\n"
    std::size_t next = character.end();
    if (c == '\r' && next < text.size() && text[next] == '\n') ++next;
    lines.push_back(text.substr(begin, (keep_ends ? next : character.begin) - begin));
    begin = next;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

}  // namespace kvc::jinja
