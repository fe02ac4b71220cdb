#include <algorithm>

#include "model/tokenizer/added_tokens.h"
#include "model/tokenizer/unicode.h"
#include "model/tokenizer/utf8.h"

namespace kvc {

namespace {

bool touches_word(std::string_view text, std::size_t begin, std::size_t end) {
  return (begin > 0 && is_word_character(code_point_before(text, begin).value)) ||
         (end < text.size() && is_word_character(code_point_at(text, end).value));
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher() : nodes_(1) {}

bool AddedTokenMatcher::add(std::string_view pattern, const AddedToken& token) {
  starts_[static_cast<unsigned char>(pattern.front())] = true;
  std::size_t node = 0;
  for (const char byte : pattern) {
    const auto [child, inserted] = nodes_[node].children.emplace(byte, nodes_.size());
    node = child->second;
    if (inserted) nodes_.emplace_back();
  }
  if (nodes_[node].token != nullptr) return false;
  nodes_[node].token = &token;
  return true;
}

std::optional<AddedTokenMatcher::Match> AddedTokenMatcher::find(std::string_view text,
                                                                std::size_t begin) const {
  for (; begin < text.size(); ++begin) {
    if (!starts_[static_cast<unsigned char>(text[begin])]) continue;
    Match match;
    std::size_t node = 0;
    for (std::size_t end = begin; end < text.size();) {
      const auto child = nodes_[node].children.find(text[end]);
      if (child == nodes_[node].children.end()) break;
      node = child->second;
      ++end;
      if (nodes_[node].token != nullptr) match = {begin, end, nodes_[node].token};
    }
    if (match.token != nullptr) return match;
  }
  return std::nullopt;
}

std::vector<TextPart> AddedTokenMatcher::split(std::string_view text) const {
  std::vector<TextPart> parts;
  std::size_t done = 0;
  std::size_t search = 0;
  const bool any = !nodes_[0].children.empty();
  while (const auto match = any ? find(text, search) : std::nullopt) {
    search = match->end;
    if (match->token->single_word && touches_word(text, match->begin, match->end)) continue;
    std::size_t begin = match->begin;
    std::size_t end = match->end;
    if (match->token->lstrip) begin = begin > done ? white_space_begin(text, begin, done) : done;
    if (match->token->rstrip) end = white_space_end(text, end);
    if (begin >= end) continue;  // the token before has taken all of it as white space
    if (done < begin) parts.push_back({std::nullopt, text.substr(done, begin - done)});
    parts.push_back({match->token->id, {}});
    done = end;
  }
  if (done < text.size()) parts.push_back({std::nullopt, text.substr(done)});
  return parts;
}

}  // namespace kvc
