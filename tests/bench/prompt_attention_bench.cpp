// Attention of a prompt: ours in bfloat16 products, LibTorch's on bfloat16 and on float32 copies.
#include <ATen/ATen.h>
#include <benchmark/benchmark.h>
#include <c10/core/InferenceMode.h>

#include <cstdint>

#include "model/bfloat16_attention.h"

namespace kvc {
namespace {

struct Shape {
  std::int64_t num_heads, num_kv_heads, head_dim;
};
constexpr Shape kShapes[] = {{14, 2, 64}, {32, 8, 128}};

template <typename Attend>
void run(benchmark::State& state, const Attend& attend) {
  const c10::InferenceMode guard;
  const Shape& shape = kShapes[state.range(0)];
  const std::int64_t tokens = state.range(1);
  const auto random = [&](std::int64_t heads) {
    return at::randn({tokens, heads, shape.head_dim}).to(at::kBFloat16);
  };
  const at::Tensor query = random(shape.num_heads), key = random(shape.num_kv_heads),
                   value = random(shape.num_kv_heads);
  for (auto _ : state) {
    benchmark::DoNotOptimize(attend(query, key, value));
  }
  state.counters["flops"] = benchmark::Counter(
      2.0 * static_cast<double>(tokens * (tokens + 1) * shape.num_heads * shape.head_dim),
      benchmark::Counter::kIsIterationInvariantRate);
}

at::Tensor torch_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                           at::ScalarType type) {
  const auto heads_first = [&](const at::Tensor& x) {
    return x.to(type).transpose(0, 1).unsqueeze(0);
  };
  return at::scaled_dot_product_attention(heads_first(query), heads_first(key), heads_first(value),
                                          /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/true,
                                          /*scale=*/{}, /*enable_gqa=*/true)
      .to(at::kBFloat16);
}

void prompt_ours(benchmark::State& state) {
  run(state, [](const auto& query, const auto& key, const auto& value) {
    return bfloat16_attention(query, key, value, {});
  });
}

void prompt_torch(benchmark::State& state) {
  run(state, [](const auto&... x) { return torch_attention(x..., at::kBFloat16); });
}

void prompt_torch_float32(benchmark::State& state) {
  run(state, [](const auto&... x) { return torch_attention(x..., at::kFloat); });
}

// The rate of products that attention can at most have.
void prompt_product(benchmark::State& state) {
  const c10::InferenceMode guard;
  constexpr std::int64_t kSize = 4096;
  const at::Tensor x = at::randn({kSize, kSize}).to(at::kBFloat16);
  for (auto _ : state) {
    benchmark::DoNotOptimize(at::mm(x, x));
  }
  state.counters["flops"] = benchmark::Counter(2.0 * kSize * kSize * kSize,
                                               benchmark::Counter::kIsIterationInvariantRate);
}

void shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"shape", "tokens"})->UseRealTime()->Unit(benchmark::kMillisecond);
  bench->ArgsProduct({{0, 1}, {512, 2048, 8192}});
}

BENCHMARK(prompt_ours)->Apply(shapes);
BENCHMARK(prompt_torch)->Apply(shapes);
BENCHMARK(prompt_torch_float32)->Apply(shapes);
BENCHMARK(prompt_product)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace kvc
