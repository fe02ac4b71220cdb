// Kernels on every instruction set that this machine has, not only the best.
#pragma once

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cstdint>
#include <vector>

namespace kvc::testing {

inline std::vector<std::int64_t> every_target() {
  std::vector<std::int64_t> each;
  for (std::int64_t left = hwy::SupportedTargets(); left != 0; left &= left - 1) {
    each.push_back(left & -left);
  }
  return each;
}

// While one lives, kernels run on this instruction set.
class ChosenTarget {
 public:
  explicit ChosenTarget(std::int64_t target) { choose(target); }
  ~ChosenTarget() { choose(0); }
  ChosenTarget(const ChosenTarget&) = delete;
  ChosenTarget& operator=(const ChosenTarget&) = delete;

 private:
  static void choose(std::int64_t target) {  // 0: whatever is best
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

// body() with each of them in turn.
template <class Body>
void on_every_target(const Body& body) {
  for (const std::int64_t target : every_target()) {
    SCOPED_TRACE(hwy::TargetName(target));
    const ChosenTarget chosen(target);
    body();
  }
}

}  // namespace kvc::testing
