// One token's attention over a plain cache: the kernel against scaled_dot_product_attention, with query
// heads that share a KV head folded into its query axis (no copy of keys) and with torch's own grouping.
#include <ATen/ATen.h>
#include <benchmark/benchmark.h>
#include <c10/core/InferenceMode.h>

#include "runtime/attention/decode.h"

namespace kvc {
namespace {

struct Shape {
  std::int64_t num_heads, num_kv_heads, head_dim;
};
constexpr Shape kShapes[] = {{8, 2, 32}, {32, 8, 128}};  // the reference model's, an 8B's

struct Inputs {
  at::Tensor query, key, value;
};

Inputs make_inputs(const benchmark::State& state, const Shape& shape) {
  const auto type = state.range(2) == 0 ? at::kFloat : at::kBFloat16;
  const std::vector<std::int64_t> rows{state.range(1), shape.num_kv_heads, shape.head_dim};
  return {at::randn({shape.num_heads, shape.head_dim}).to(type), at::randn(rows).to(type),
          at::randn(rows).to(type)};
}

void report(benchmark::State& state, const Inputs& inputs) {
  state.SetBytesProcessed(state.iterations() *
                          static_cast<std::int64_t>(inputs.key.nbytes() + inputs.value.nbytes()));
}

void kernel(benchmark::State& state) {
  const c10::InferenceMode guard;
  const Inputs inputs = make_inputs(state, kShapes[state.range(0)]);
  for (auto _ : state) {
    benchmark::DoNotOptimize(decode_attention(inputs.query, inputs.key, inputs.value));
  }
  report(state, inputs);
}

void sdpa_folded(benchmark::State& state) {
  const c10::InferenceMode guard;
  const Shape& shape = kShapes[state.range(0)];
  const Inputs inputs = make_inputs(state, shape);
  const at::Tensor query =
      inputs.query.view({1, shape.num_kv_heads, shape.num_heads / shape.num_kv_heads, -1});
  for (auto _ : state) {
    benchmark::DoNotOptimize(at::scaled_dot_product_attention(
        query, inputs.key.transpose(0, 1).unsqueeze(0), inputs.value.transpose(0, 1).unsqueeze(0)));
  }
  report(state, inputs);
}

void sdpa_grouped(benchmark::State& state) {
  const c10::InferenceMode guard;
  const Inputs inputs = make_inputs(state, kShapes[state.range(0)]);
  const at::Tensor query = inputs.query.unsqueeze(1).unsqueeze(0);
  for (auto _ : state) {
    benchmark::DoNotOptimize(at::scaled_dot_product_attention(
        query, inputs.key.transpose(0, 1).unsqueeze(0), inputs.value.transpose(0, 1).unsqueeze(0),
        {}, 0.0, false, std::nullopt, /*enable_gqa=*/true));
  }
  report(state, inputs);
}

void sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"shape", "tokens", "bf16"})->UseRealTime();
  for (const int shape : {0, 1}) {
    for (const int type : {0, 1}) {
      for (const int tokens : {1024, 4096, 16384}) {
        bench->Args({shape, tokens, type});
      }
    }
  }
}

BENCHMARK(kernel)->Apply(sizes);
BENCHMARK(sdpa_folded)->Apply(sizes);
BENCHMARK(sdpa_grouped)->Apply(sizes);

}  // namespace
}  // namespace kvc
