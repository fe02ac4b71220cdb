// Passes text on piece by piece up to the first stop string; text that may begin one is held back.
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

  // Takes whole characters; returns text that is certainly before any stop string.
  std::string push(std::string_view piece);
  std::string finish();  // the held-back text that is no stop string
  // The text contains one; nothing follows.
  bool stopped() const { return stopped_; }

 private:
  std::size_t held_bytes() const;

  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

// Throws UsageError naming the flag for a stop string that no text can contain.
void check_stop_strings(const std::vector<std::string>& stops);

}  // namespace kvc
