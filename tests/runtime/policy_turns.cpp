#include "tests/runtime/policy_turns.h"

#include <vector>

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

}  // namespace kvc::testing
