// How much backtracking the patterns of a tokenizer may do on one text.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvc {

// Patterns come from files: with some, a search takes time exponential in the text's length. The
// budget is far above what the patterns of real tokenizers need.
class SearchBudget {
 public:
  explicit SearchBudget(std::size_t text_bytes) : left_(100'000'000 + 2000 * text_bytes) {}

  std::uint64_t left() const { return left_; }
  void charge(std::uint64_t retries) { left_ -= retries < left_ ? retries : left_; }

 private:
  std::uint64_t left_;  // steps back
};

}  // namespace kvc
