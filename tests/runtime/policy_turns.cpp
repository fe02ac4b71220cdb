#include "tests/runtime/policy_turns.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <type_traits>
#include <vector>

#include <vector>

#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc::testing {

EngineOptions under(const std::string& policy, const std::string& kv_dtype) {
  EngineOptions options;
  options.kv_dtype = kv_dtype;
  options.policy = parse_token_policy(policy);
  return options;
}

at::Tensor two_turns(const Engine& engine, const Row& ids, Sequence& sequence, const Turns& turns) {
  std::vector<at::Tensor> logits{
      cached_logits(engine, part(ids, 0, turns.second), turns.first, 1, sequence)};
  logits.push_back(
      engine.prefill({&sequence}, {part(ids, turns.second, turns.end)}, Engine::Rows::kAll)
          .front());
  for (std::size_t i = turns.end; i < ids.size(); ++i) {
    logits.push_back(engine.extend({&sequence}, {{ids[i]}}, Engine::Rows::kAll).front());
  }
  return at::cat(logits);
}

void expect_same_in_pieces_and_batches(
    const std::function<std::unique_ptr<Engine>(const EngineOptions&)>& load,
    const EngineOptions& options, const Row& ids, const Turns& turns) {
  const auto run = [&](const Engine& engine) {
    Sequence sequence = engine.new_sequence();
    return two_turns(engine, ids, sequence, turns);
  };
  const at::Tensor alone = run(*load(options));
  EngineOptions in_pieces = options;
  in_pieces.prefill_chunk = 7;
  const auto engine = load(in_pieces);
  EXPECT_TRUE(tensors_close(run(*engine), alone, kRounding));
  const Row other = random_ids(1, 77, 96, 2).front();
  const auto begin = static_cast<std::int64_t>(turns.first),
             end = static_cast<std::int64_t>(turns.second);
  for (const bool first : {true, false}) {
    Sequence a = engine->new_sequence(), b = engine->new_sequence();
    const auto both = [&](const auto& x, const auto& y) {
      using Element = std::decay_t<decltype(x)>;
      return first ? std::vector<Element>{x, y} : std::vector<Element>{y, x};
    };
    Sequence *const to_a = &a, *const to_b = &b;
    engine->prefill(both(to_a, to_b), both(part(ids, 0, turns.first), other), Engine::Rows::kLast);
    Sequence fork = a.fork();
    engine->extend({&fork}, {part(other, 0, 30)}, Engine::Rows::kLast);
    // Many tokens at once are as many tokens one by one.
    const auto logits = engine->extend(
        both(to_a, to_b), both(part(ids, turns.first, turns.second), part(other, 0, 9)),
        Engine::Rows::kAll);
    EXPECT_TRUE(tensors_close(logits[first ? 0 : 1], alone.slice(0, begin, end), kRounding))
        << "first of the batch: " << first;
  }
}

}  // namespace kvc::testing
