// Kernels on every instruction set that this machine has, not only the best.
#pragma once

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cstdint>

namespace kvc::testing {

// body() with each of them in turn.
template <class Body>
void on_every_target(const Body& body) {
  const auto choose = [](std::int64_t target) {  // 0: whatever is best
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  };
  for (std::int64_t left = hwy::SupportedTargets(); left != 0; left &= left - 1) {
    const std::int64_t target = left & -left;
    SCOPED_TRACE(hwy::TargetName(target));
    choose(target);
    body();
    choose(0);
  }
}

}  // namespace kvc::testing
