// Kernels of the runtime with special instructions and without.
#pragma once

#include "runtime/kernels/cpu_features.h"
#include "tests/model/kernels/targets.h"

namespace kvc::testing {

// While one lives, kernels use special instructions or none. The last one to end allows them.
class SpecialInstructions {
 public:
  explicit SpecialInstructions(bool allowed) { allow_special_instructions(allowed); }
  ~SpecialInstructions() { allow_special_instructions(true); }
  SpecialInstructions(const SpecialInstructions&) = delete;
  SpecialInstructions& operator=(const SpecialInstructions&) = delete;
};

// check() with special instructions and without.
template <class Check>
void with_and_without_instructions(const Check& check) {
  for (const bool special : {true, false}) {
    const SpecialInstructions instructions(special);
    check();
  }
}

// check(true) with the best instructions of this machine, then check(false) on every instruction set without special
// instructions.
template <class Check>
void with_best_and_every_target(const Check& check) {
  check(true);
  const SpecialInstructions none(false);
  on_every_target([&] { check(false); });
}

}  // namespace kvc::testing
