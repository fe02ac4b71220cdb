// A step of generation after long texts: with the original cache, over latents of which every key is rebuilt, and over
// those that are chosen, in turns: build/<preset>/tests/selective_step_bench MODEL CONVERTED TOKENS ROUNDS SETTINGS...
// CONVERTED: the same model under method xkv; SETTINGS: of --selective. Caches are filled with random numbers, which
// cost a step what those of a text do.
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <string>
#include <vector>

#include "runtime/compression/chunk_landmarks.h"
#include "runtime/engine.h"

namespace kvc {
namespace {

at::Tensor random_rows(const std::vector<std::int64_t>& shape) {
  return at::randn(shape, at::kFloat);
}

// Everything that has left the window is latents of one basis.
void fill_group(const KvPlan& plan, int index, std::int64_t tokens, LatentStore& store) {
  const LatentGroup& group = plan.groups[static_cast<std::size_t>(index)];
  std::vector<at::Tensor> key, value;
  for (int layer = 0; layer < group.num_layers; ++layer) {
    const std::vector<std::int64_t> shape{tokens, plan.num_kv_heads, plan.head_dim};
    store.append_pending(layer, random_rows(shape), random_rows(shape));
    key.push_back(random_rows({plan.kv_dim(), group.key_width()}) / 16);
    value.push_back(random_rows({plan.kv_dim(), group.value_width()}) / 16);
  }
  const std::int64_t count = tokens - plan.compression.sink_tokens - plan.compression.window_tokens;
  std::vector<NewChunks> chunks;
  if (plan.selective) {
    chunks = chunks_of(*plan.selective, store, plan.compression.sink_tokens, count);
  }
  store.decide(at::ones({count}, at::kBool), store.next_positions(count),
               random_rows({count, group.rank}));
  append_chunks(chunks, store);
  store.add_basis(0, key, value);
}

// An engine, a sequence of random tokens and the times of its steps.
struct StepCase {
  StepCase(const std::string& model, const std::string& selective, std::int64_t tokens)
      : name(selective),
        engine(Engine::load(model, options(selective))),
        sequence(engine.new_sequence()) {
    auto& cache = const_cast<KvCache&>(sequence.cache());  // reading as many takes long
    const KvPlan& plan = engine.plan();
    for (int group = 0; group < static_cast<int>(plan.groups.size()); ++group) {
      fill_group(plan, group, tokens, cache.group(group));
    }
    const std::vector<std::int64_t> shape{tokens, plan.num_kv_heads, plan.head_dim};
    for (int layer = 0; layer < plan.num_layers(); ++layer) {
      if (plan.layers[static_cast<std::size_t>(layer)] == KvSource::kPlain) {
        cache.plain_layer(layer).append(random_rows(shape), random_rows(shape));
      }
    }
    cache.add_tokens(std::vector<std::int64_t>(static_cast<std::size_t>(tokens), 5));
  }

  static EngineOptions options(const std::string& selective) {
    EngineOptions options{.dtype = "bfloat16", .kv_dtype = ""};
    options.time_parts = true;
    if (selective.find('=') != std::string::npos) {
      options.selective = parse_selective(selective);
    }
    return options;
  }

  void step() {
    const double attention = engine.part_times()->of(Part::kAttention);
    const auto start = std::chrono::steady_clock::now();
    engine.extend({&sequence}, {{5}}, Engine::Rows::kLast);
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    of_attention.push_back(engine.part_times()->of(Part::kAttention) - attention);
  }

  std::string name;
  Engine engine;
  Sequence sequence;
  std::vector<double> seconds{}, of_attention{};
};

// For all but the first.
double median(std::vector<double> numbers) {
  numbers.erase(numbers.begin());
  std::sort(numbers.begin(), numbers.end());
  return numbers[numbers.size() / 2];
}

void run(const std::string& model, const std::string& converted, std::int64_t tokens, int rounds,
         const std::vector<std::string>& settings) {
  const c10::InferenceMode guard;
  std::deque<StepCase> cases;
  cases.emplace_back(model, "original", tokens);
  cases.emplace_back(converted, "all latents", tokens);
  for (const std::string& selective : settings) {
    cases.emplace_back(converted, selective, tokens);
  }
  for (int round = 0; round <= rounds; ++round) {
    for (StepCase& each : cases) {
      each.step();
    }
  }
  fmt::print("{:<32} {:>8} {:>16} {:>12} {:>10}\n", "cache", "step, ms", "attention, ms",
             "KV bytes", "rebuilt");
  for (const StepCase& each : cases) {
    const RebuildCounts counts = each.engine.rebuild_counts();
    fmt::print("{:<32} {:>8.1f} {:>16.1f} {:>12} {:>10.4f}\n", each.name,
               1e3 * median(each.seconds), 1e3 * median(each.of_attention),
               each.sequence.cache().allocated_bytes(),
               counts.latents > 0
                   ? static_cast<double>(counts.rebuilt) / static_cast<double>(counts.latents)
                   : 1.0);
  }
}

}  // namespace
}  // namespace kvc

int main(int argc, char** argv) {
  if (argc < 5) {
    fmt::print(stderr, "selective_step_bench MODEL CONVERTED TOKENS ROUNDS SETTINGS...\n");
    return 2;
  }
  kvc::run(argv[1], argv[2], std::atoll(argv[3]), std::atoi(argv[4]), {argv + 5, argv + argc});
}
