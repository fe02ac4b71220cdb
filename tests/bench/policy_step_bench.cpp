// A step of generation after long texts, with all tokens and under a token policy, in turns:
// build/<preset>/tests/policy_step_bench MODEL POLICY TOKENS ROUNDS. Caches are filled with random keys and values,
// which cost a step what those of a text do. Prints JSON; bench/bench_policy_step.py reads it.
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "runtime/engine.h"
#include "runtime/policies/token_policies.h"

namespace kvc {
namespace {

constexpr std::int64_t kShortTokens = 2048;

// A sequence of random tokens, and the times of its steps.
struct Case {
  Case(const Engine& engine_of_case, std::int64_t count)
      : engine(engine_of_case), tokens(count), sequence(engine.new_sequence()) {
    auto& cache = const_cast<KvCache&>(sequence.cache());  // reading as many takes hours
    for (int layer = 0; layer < engine.config().num_layers; ++layer) {
      fill(cache, layer);
    }
    cache.add_tokens(std::vector<std::int64_t>(static_cast<std::size_t>(count), 5));
  }

  void fill(KvCache& cache, int layer) const {
    const ModelConfig& config = engine.config();
    const std::vector<std::int64_t> shape{tokens, config.num_kv_heads, config.head_dim};
    const at::Tensor key = at::randn(shape, at::kFloat), value = at::randn(shape, at::kFloat);
    if (engine.policy().is_full()) {
      cache.plain_layer(layer).append(key, value);
      return;
    }
    KeptLayer& kept = cache.kept_layer(layer);
    kept.choice.budget = layer_budget(engine.policy(), tokens, layer, config.num_layers);
    const std::int64_t at_once = std::min(tokens, kept.choice.budget);
    const at::Tensor positions = at::arange(tokens, at::kLong);
    kept.rows.append(key.narrow(0, 0, at_once), value.narrow(0, 0, at_once),
                     positions.narrow(0, 0, at_once));
    for (std::int64_t token = at_once; token < tokens; ++token) {
      kept.rows.append(key.narrow(0, token, 1), value.narrow(0, token, 1),
                       positions.narrow(0, token, 1));
      finish_token(engine.policy(), {kept.choice, {{&kept.rows}}});
    }
  }

  void step() {
    const double attention = attention_seconds();
    const auto start = std::chrono::steady_clock::now();
    engine.extend({&sequence}, {{5}}, Engine::Rows::kLast);
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    of_attention.push_back(attention_seconds() - attention);
  }

  double attention_seconds() const {
    return engine.part_times()->seconds[static_cast<std::size_t>(Part::kAttention)];
  }

  const Engine& engine;
  std::int64_t tokens;
  Sequence sequence;
  std::vector<double> seconds{}, of_attention{};
};

double median(std::vector<double> numbers) {
  std::sort(numbers.begin(), numbers.end());
  return numbers[numbers.size() / 2];
}

void run(const std::string& model, const std::string& policy, std::int64_t tokens, int rounds) {
  const c10::InferenceMode guard;
  EngineOptions options{.dtype = "bfloat16", .kv_dtype = ""};
  options.time_parts = true;
  const Engine dense = Engine::load(model, options);
  options.policy = parse_token_policy(policy);
  const Engine small = Engine::load(model, options);
  std::vector<Case> cases;
  cases.reserve(3);
  cases.emplace_back(dense, tokens);
  cases.emplace_back(small, kShortTokens);
  cases.emplace_back(small, tokens);
  for (int round = 0; round <= rounds; ++round) {
    for (Case& each : cases) {
      each.step();
    }
  }
  std::string lines;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    Case& each = cases[i];
    each.seconds.erase(each.seconds.begin());  // warm-up
    each.of_attention.erase(each.of_attention.begin());
    lines += fmt::format(
        "{}{{\"policy\": \"{}\", \"tokens\": {}, \"step_ms\": {:.3f}, \"attention_us_per_layer\": "
        "{:.1f}, \"kv_bytes\": {}}}",
        i == 0 ? "" : ",\n ", to_string(each.engine.policy()), each.tokens,
        1e3 * median(each.seconds), 1e6 * median(each.of_attention) / dense.config().num_layers,
        each.sequence.cache().allocated_bytes());
  }
  fmt::print("[{}]\n", lines);
}

}  // namespace
}  // namespace kvc

int main(int argc, char** argv) {
  if (argc != 5) {
    fmt::print(stderr, "policy_step_bench MODEL POLICY TOKENS ROUNDS\n");
    return 2;
  }
  kvc::run(argv[1], argv[2], std::atoll(argv[3]), std::atoi(argv[4]));
}
