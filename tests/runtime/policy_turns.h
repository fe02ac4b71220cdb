// What tests of token policies run.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <string>

#include "runtime/engine.h"
#include "tests/runtime/engine_fixture.h"

namespace kvc::testing {

EngineOptions under(const std::string& policy, const std::string& kv_dtype = "");

// Ids up to `first` are a prompt, those before `second` tokens behind it, those before `end` another prompt, and the
// rest tokens again.
struct Turns {
  std::size_t first = 40, second = 60, end = 90;
};
// [number of ids, vocabulary]
at::Tensor two_turns(const Engine& engine, const Row& ids, Sequence& sequence,
                     const Turns& turns = {});

}  // namespace kvc::testing
