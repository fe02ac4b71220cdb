// A step of generation behind a random prompt, with the original cache and with a converted one whose groups a
// memory budget keeps rebuilt, in turns: build/<preset>/tests/expanded_step_bench MODEL CONVERTED BUDGET TOKENS ROUNDS,
// BUDGET as kvrun's --memory. The two of a round meet the machine's memory at the same speed: ratios are of rounds.
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "runtime/engine.h"
#include "runtime/memory/memory_budget.h"

namespace kvc {
namespace {

using Clock = std::chrono::steady_clock;

struct StepTimes {
  double step, attention;  // seconds
};

class StepCase {
 public:
  StepCase(const std::string& model, std::optional<std::int64_t> budget,
           const std::vector<std::int64_t>& prompt)
      : engine_(Engine::load(model, options(budget))), sequence_(engine_.new_sequence()) {
    engine_.prefill({&sequence_}, {prompt}, Engine::Rows::kLast);
  }

  StepTimes step() {
    const double attention = engine_.part_times()->of(Part::kAttention);
    const auto start = Clock::now();
    engine_.extend({&sequence_}, {{5}}, Engine::Rows::kLast);
    return {std::chrono::duration<double>(Clock::now() - start).count(),
            engine_.part_times()->of(Part::kAttention) - attention};
  }
  std::int64_t bytes() const { return sequence_.cache().allocated_bytes(); }

 private:
  static EngineOptions options(std::optional<std::int64_t> budget) {
    EngineOptions options{.dtype = "bfloat16", .kv_dtype = ""};
    options.time_parts = true;
    options.memory_bytes = budget;
    return options;
  }

  Engine engine_;
  Sequence sequence_;
};

double quantile(std::vector<double> numbers, double at) {
  std::sort(numbers.begin(), numbers.end());
  return numbers[static_cast<std::size_t>(at * static_cast<double>(numbers.size() - 1))];
}

void run(const std::string& model, const std::string& converted, std::int64_t budget,
         std::int64_t tokens, int rounds) {
  const c10::InferenceMode guard;
  std::mt19937 random(1);
  std::vector<std::int64_t> prompt;
  for (std::int64_t i = 0; i < tokens; ++i) {
    prompt.push_back(static_cast<std::int64_t>(random() % 256));
  }
  StepCase original(model, std::nullopt, prompt), rebuilt(converted, budget, prompt);
  original.step(), rebuilt.step();  // warm-up
  std::vector<double> steps, of_original, of_rebuilt, attention;
  for (int round = 0; round < rounds; ++round) {
    const StepTimes a = original.step(), b = rebuilt.step();
    steps.push_back(b.step / a.step);
    attention.push_back(b.attention / a.attention);
    of_original.push_back(1e3 * a.attention);
    of_rebuilt.push_back(1e3 * b.attention);
  }
  fmt::print("attention, ms: original {:.2f}, rebuilt {:.2f}; bytes of KV: {}, {}\n",
             quantile(of_original, 0.5), quantile(of_rebuilt, 0.5), original.bytes(),
             rebuilt.bytes());
  for (const auto& [name, ratios] : {std::pair("attention", attention), {"step", steps}}) {
    fmt::print("{:<10} rebuilt / original: median {:.3f}, quartiles {:.3f} and {:.3f}\n", name,
               quantile(ratios, 0.5), quantile(ratios, 0.25), quantile(ratios, 0.75));
  }
}

}  // namespace
}  // namespace kvc

int main(int argc, char** argv) {
  if (argc != 6) {
    fmt::print(stderr, "expanded_step_bench MODEL CONVERTED BUDGET TOKENS ROUNDS\n");
    return 2;
  }
  kvc::run(argv[1], argv[2], kvc::parse_bytes("BUDGET", argv[3]), std::atoll(argv[4]),
           std::atoi(argv[5]));
}
