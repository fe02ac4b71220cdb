#include "runtime/stop_filter.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "model/tokenizer/utf8.h"

namespace kvc {

// Length of the longest end of held_ that some stop string begins with.
std::size_t StopFilter::held_bytes() const {
  std::size_t longest = 0;
  for (const std::string& stop : stops_) {
    for (std::size_t bytes = std::min(held_.size(), stop.size() - 1); bytes > longest; --bytes) {
      if (held_.compare(held_.size() - bytes, bytes, stop, 0, bytes) == 0) {
        longest = bytes;
      }
    }
  }
  return longest;
}

std::string StopFilter::push(std::string_view piece) {
  if (stopped_) {
    return "";
  }
  held_ += piece;
  std::size_t end = std::string::npos;
  for (const std::string& stop : stops_) {
    end = std::min(end, held_.find(stop));
  }
  stopped_ = end != std::string::npos;
  if (!stopped_) {
    end = held_.size() - held_bytes();
  }
  std::string certain = held_.substr(0, end);
  held_.erase(0, stopped_ ? std::string::npos : end);
  return certain;
}

std::string StopFilter::finish() { return std::exchange(held_, ""); }

void check_stop_strings(const std::vector<std::string>& stops) {
  for (const std::string& stop : stops) {
    KVC_CHECK_USAGE(!stop.empty(), "--stop: the text is empty; give at least one character");
    KVC_CHECK_USAGE(!first_invalid_utf8(stop), "--stop: '{}' is not UTF-8",
                    replace_invalid_utf8(stop));
  }
}

}  // namespace kvc
