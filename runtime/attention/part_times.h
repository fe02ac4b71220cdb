// Time per part of a run.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>

namespace kvc {

enum class Part {
  kModel,        // forward passes without attention: projections (also to latents), MLP, norms
  kAttention,    // KV stores included
  kCompression,  // deciding and merging tokens
  kLogits,
  kSampling,
};
inline constexpr std::array<const char*, 5> kPartNames = {"model", "attention", "compression",
                                                          "logits", "sampling"};

struct PartTimes {
  std::array<double, kPartNames.size()> seconds{};

  double& of(Part part) { return seconds[static_cast<std::size_t>(part)]; }
  PartTimes since(const PartTimes& earlier) const {
    PartTimes difference = *this;
    for (std::size_t i = 0; i < seconds.size(); ++i) {
      difference.seconds[i] -= earlier.seconds[i];
    }
    return difference;
  }
};

// Adds its lifetime to a part, and subtracts it from an enclosing part. Without `times` the clock is
// never read.
class PartScope {
 public:
  PartScope(PartTimes* times, Part part) : PartScope(times, part, part) {}
  PartScope(PartTimes* times, Part part, Part within)
      : times_(times), part_(part), within_(within) {
    if (times_ != nullptr) {
      start_ = Clock::now();
    }
  }
  ~PartScope() {
    if (times_ != nullptr) {
      const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
      times_->of(part_) += seconds;
      if (within_ != part_) {
        times_->of(within_) -= seconds;
      }
    }
  }
  PartScope(const PartScope&) = delete;
  PartScope& operator=(const PartScope&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  PartTimes* times_;
  Part part_, within_;
  Clock::time_point start_{};
};

}  // namespace kvc
