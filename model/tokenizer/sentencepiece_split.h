// Cutting a text at added tokens as transformers' Python tokenizers do, which differs from the
// tokenizers library where tokens overlap.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace kvc {

class TokenTrie {
 public:
  TokenTrie() : nodes_(1) {}
  void add(std::u32string_view token);
  // The parts of `text`, none empty, tokens among them: leftmost first and the longest of those,
  // with the exceptions that transformers' Trie makes.
  std::vector<std::u32string> split(std::u32string_view text) const;

 private:
  struct Node {
    std::map<char32_t, std::size_t> children;
    bool is_token = false;
  };
  struct Partial {
    std::size_t begin = 0, node = 0;
  };
  struct Cut {
    std::size_t begin = 0, end = 0;
    std::size_t skip = 0;  // characters before it are not looked at again
  };
  const std::size_t* child(std::size_t node, std::u32string_view text, std::size_t index) const;
  Cut longest(const std::vector<Partial>& partials, std::size_t found, std::u32string_view text,
              std::size_t current, std::size_t skip) const;

  std::vector<Node> nodes_;  // nodes_[0] is the root
};

std::string to_utf8(std::u32string_view text);

// What Python's str.lstrip and str.rstrip take away.
std::u32string_view without_leading_space(std::u32string_view text);
std::u32string_view without_trailing_space(std::u32string_view text);

}  // namespace kvc
