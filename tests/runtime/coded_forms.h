// Texts and forms of coded layers that several tests of them share.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "tests/runtime/engine_fixture.h"
#include "tests/runtime/factored_checkpoint.h"
#include "tests/testing/test_tensors.h"

namespace kvc::testing {

inline constexpr std::int64_t kCodedTokens = 140;  // four tiles and a part of one
inline constexpr int kCodedPairs = 4;              // of a head of 8 channels

inline Row coded_ids(std::int64_t count = kCodedTokens) {
  return random_ids(1, count, 96, 3).front();
}

inline double mean_error(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().mean().item<double>();
}

// What is coded together, and how keys are coded where they are apart.
struct CodedLayerForm {
  const char* name;
  CodedScope scope;
  int bases = 0;
  bool rotated = false;

  CodedPlanOptions options(bool gain) const {
    return {.scope = scope, .gain = gain, .bases = bases, .rotated = rotated};
  }
};

// Codes of few bits.
inline void coarsen(CodedPlanOptions& options) {
  options.coefficients[1] = options.coefficients[6] = 2;
  options.coefficients[2] = 3;
  options.coefficients[4] = 5;
  options.coefficients[5] = 1;
}

}  // namespace kvc::testing
