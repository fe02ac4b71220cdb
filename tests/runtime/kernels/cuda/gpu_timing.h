// Times of GPU work, and reports of them as ratios to what the same GPU can do in the same run.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace kvc::testing {

// Milliseconds of one run of each: events around `repeats` of it, things in turn, the median of 11 rounds after two.
// NaN for what is empty.
std::vector<double> median_times(const std::vector<std::function<void()>>& things, int repeats);

// Lines of a table, and the same as JSON with the device's name and clocks.
class TimingReport {
 public:
  // ratio: of `of`, NaN where `of` was not measured, which leaves the line out; target: empty where there is none.
  void add(const std::string& name, double milliseconds, double ratio, const std::string& of,
           const std::string& target);
  std::string json() const;

 private:
  std::vector<std::string> lines_;
};

}  // namespace kvc::testing
