// What tests of token policies run.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <functional>
#include <memory>
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

// Neither pieces of a prompt, nor a batch in either order, nor what a fork reads changes a text's logits.
void expect_same_in_pieces_and_batches(
    const std::function<std::unique_ptr<Engine>(const EngineOptions&)>& load,
    const EngineOptions& options, const Row& ids, const Turns& turns = {});

}  // namespace kvc::testing
