#include "model/tokenizer/sentencepiece_split.h"

#include "model/tokenizer/unicode.h"
#include "model/tokenizer/utf8.h"

namespace kvc {

namespace {

// Python also counts the four separators of ASCII.
bool is_python_space(char32_t code_point) {
  return is_white_space(code_point) || (code_point >= 0x1C && code_point <= 0x1F);
}

}  // namespace

void TokenTrie::add(std::u32string_view token) {
  std::size_t node = 0;
  for (const char32_t code_point : token) {
    const auto [found, inserted] = nodes_[node].children.emplace(code_point, nodes_.size());
    node = found->second;
    if (inserted) nodes_.emplace_back();
  }
  nodes_[node].is_token = true;
}

// nullptr: text[index] is past the end or continues no token.
const std::size_t* TokenTrie::child(std::size_t node, std::u32string_view text,
                                    std::size_t index) const {
  if (index >= text.size()) return nullptr;
  const auto found = nodes_[node].children.find(text[index]);
  return found == nodes_[node].children.end() ? nullptr : &found->second;
}

// A token that began at partials[found] is complete before text[current]. The longest one from its
// beginning counts, or one from an earlier beginning. Partial matches before `found` have consumed
// text[current] already, also those that failed on it: then they go on one character later.
TokenTrie::Cut TokenTrie::longest(const std::vector<Partial>& partials, std::size_t found,
                                  std::u32string_view text, std::size_t current,
                                  std::size_t skip) const {
  Cut cut{partials[found].begin, current, skip};
  for (const Partial& partial : partials) {
    if (partial.begin > cut.begin) break;
    std::size_t index = partial.begin < cut.begin ? current + 1 : current;
    std::size_t node = partial.node;
    cut.end = index;
    if (nodes_[node].is_token) cut = {partial.begin, index, index};
    while (const std::size_t* next = child(node, text, index)) {
      node = *next;
      ++index;
      if (nodes_[node].is_token) cut = {partial.begin, index, index};
    }
  }
  return cut;
}

std::vector<std::u32string> TokenTrie::split(std::u32string_view text) const {
  std::vector<std::size_t> offsets;
  std::vector<Partial> partials, kept;
  std::size_t skip = 0;
  for (std::size_t current = 0; current < text.size(); ++current) {
    if (current < skip) continue;
    kept.clear();
    bool cut_here = false;
    for (std::size_t i = 0; i < partials.size() && !cut_here; ++i) {
      Partial& partial = partials[i];
      if (nodes_[partial.node].is_token) {
        const Cut cut = longest(partials, i, text, current, skip);
        skip = cut.skip;
        offsets.insert(offsets.end(), {cut.begin, cut.end});
        cut_here = true;
      } else if (const std::size_t* next = child(partial.node, text, current)) {
        partial.node = *next;
        kept.push_back(partial);
      }
    }
    if (cut_here) kept.clear();
    partials.swap(kept);
    const std::size_t* first = child(0, text, current);
    if (current >= skip && first != nullptr) partials.push_back({current, *first});
  }
  for (const Partial& partial : partials) {
    if (!nodes_[partial.node].is_token) continue;
    offsets.insert(offsets.end(), {partial.begin, text.size()});
    break;
  }
  offsets.push_back(text.size());
  std::vector<std::u32string> parts;
  std::size_t begin = 0;
  for (const std::size_t end : offsets) {
    if (end <= begin) continue;
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  return parts;
}

std::string to_utf8(std::u32string_view text) {
  std::string bytes;
  for (const char32_t code_point : text) append_utf8(bytes, code_point);
  return bytes;
}

std::u32string_view without_leading_space(std::u32string_view text) {
  while (!text.empty() && is_python_space(text.front())) text.remove_prefix(1);
  return text;
}

std::u32string_view without_trailing_space(std::u32string_view text) {
  while (!text.empty() && is_python_space(text.back())) text.remove_suffix(1);
  return text;
}

}  // namespace kvc
