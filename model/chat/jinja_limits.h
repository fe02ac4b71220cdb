// What one rendering may use, so that no template hangs or exhausts memory.
#pragma once

#include <cstdint>

#include "core/error.h"
#include "core/interrupt.h"

namespace kvc::jinja {

class Budget {
 public:
  static constexpr std::int64_t kMaxSteps = 2'000'000;
  static constexpr std::int64_t kMaxBytes = 256 << 20;  // made in all, freed or not
  static constexpr std::int64_t kMaxRange = 100'000;    // as Jinja2's sandbox
  static constexpr int kMaxDepth = 1500;  // statements and expressions inside each other

  void step() { steps(1); }
  // Reads a text of so many bytes from end to end.
  void scan(std::size_t count) { steps(static_cast<std::int64_t>(count / kBytesPerStep)); }
  void bytes(std::size_t count) {
    bytes_ += static_cast<std::int64_t>(count);
    KVC_CHECK(bytes_ <= kMaxBytes, "the template makes more than {} bytes of text", kMaxBytes);
  }

 private:
  static constexpr std::size_t kBytesPerStep = 256;

  void steps(std::int64_t count) {
    constexpr std::int64_t kUnasked = 4096;  // steps between two looks at signals
    if (steps_ / kUnasked != (steps_ + count) / kUnasked) check_interrupt();
    steps_ += count;
    KVC_CHECK(steps_ <= kMaxSteps, "the template does not end after {} steps", kMaxSteps);
  }

  std::int64_t steps_ = 0, bytes_ = 0;
};

}  // namespace kvc::jinja
