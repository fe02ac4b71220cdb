// Prefill and decode of the reference model.
#include <benchmark/benchmark.h>

#include <filesystem>
#include <vector>

#include "runtime/engine.h"

namespace kvc {
namespace {

Engine load(bool bfloat16) {
  EngineOptions options;
  options.dtype = bfloat16 ? "bfloat16" : "float32";
  return Engine::load(std::filesystem::path(KVC_TEST_DATA) / "reference-llama", options);
}

std::vector<std::int64_t> prompt(std::int64_t length) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < length; ++i) {
    ids.push_back(3 + i * 7919 % 2000);
  }
  return ids;
}

void prefill(benchmark::State& state) {
  const Engine engine = load(state.range(0) != 0);
  for (auto _ : state) {
    Sequence sequence = engine.new_sequence();
    benchmark::DoNotOptimize(
        engine.prefill({&sequence}, {prompt(state.range(1))}, Engine::Rows::kLast));
  }
  state.SetItemsProcessed(state.iterations() * state.range(1));
}

void decode(benchmark::State& state) {
  const Engine engine = load(state.range(0) != 0);
  Sequence sequence = engine.new_sequence();
  engine.prefill({&sequence}, {prompt(state.range(1))}, Engine::Rows::kLast);
  for (auto _ : state) {
    benchmark::DoNotOptimize(engine.extend({&sequence}, {{5}}, Engine::Rows::kLast));
  }
  state.SetItemsProcessed(state.iterations());
}

BENCHMARK(prefill)->ArgNames({"bf16", "tokens"})->ArgsProduct({{0, 1}, {512}})->UseRealTime();
BENCHMARK(decode)
    ->ArgNames({"bf16", "tokens"})
    ->ArgsProduct({{0, 1}, {512}})
    ->Iterations(300)
    ->UseRealTime();

}  // namespace
}  // namespace kvc
