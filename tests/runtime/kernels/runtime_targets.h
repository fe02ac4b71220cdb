// Kernels of the runtime with special instructions and without.
#pragma once

#include "runtime/kernels/cpu_features.h"
#include "tests/model/kernels/targets.h"

namespace kvc::testing {

// check() with special instructions and without.
template <class Check>
void with_and_without_instructions(const Check& check) {
  for (const bool special : {true, false}) {
    allow_special_instructions(special);
    check();
  }
  allow_special_instructions(true);
}

// check(true) with the best instructions of this machine, then check(false) on every instruction set without special
// instructions.
template <class Check>
void with_best_and_every_target(const Check& check) {
  check(true);
  allow_special_instructions(false);
  on_every_target([&] { check(false); });
  allow_special_instructions(true);
}

}  // namespace kvc::testing
