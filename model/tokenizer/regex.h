// Regular expressions as the tokenizers library has them: Oniguruma in its own syntax, over UTF-8,
// with that library's Unicode tables whatever the installed Oniguruma's are.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/component.h"
#include "model/tokenizer/pieces.h"

namespace kvc {

// A pattern in Oniguruma's syntax, rewritten so that it needs none of its Unicode tables.
// Spells the characters of \p{...}, \w, \d and [[:alpha:]] out. Throws Error for what depends on the
// Unicode version in ways that cannot be spelled out, and for properties without a table.
std::string expand_unicode_classes(const std::string& pattern, const std::string& subject);

class Regex {
 public:
  // Throws Error when `pattern` is invalid or needs what is not supported.
  Regex(const std::string& pattern, const std::string& subject);
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  // Appends the segments of `text`, which is valid UTF-8 and not empty. An empty match is one only
  // where no match ended. Throws Error when the budget is spent.
  void find_all(std::string_view text, SearchBudget& budget,
                std::vector<TextSegment>& segments) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace kvc
