// Text up to the first of some stop strings, passed on piece by piece: what may be the beginning of one is
// held back.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvc {

class StopFilter {
 public:
  // Stop strings are valid UTF-8 and not empty; none: everything passes.
  explicit StopFilter(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Whole characters in, what is certain to be before any stop string out.
  std::string push(std::string_view piece);
  std::string finish();  // what was held back and is no stop string
  // The text contains one; nothing follows.
  bool stopped() const { return stopped_; }

 private:
  std::size_t held_bytes() const;

  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

// Throws UsageError naming the flag for a stop string that no text could contain.
void check_stop_strings(const std::vector<std::string>& stops);

}  // namespace kvc
