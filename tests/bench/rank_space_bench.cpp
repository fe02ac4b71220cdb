// Attention of one token over the latents of a layer against one product of as many operations, in turn:
// "ratio" is the median of the times' quotients. The attention of an 8B, in bfloat16:
// build/<preset>/tests/runtime_bench --benchmark_filter=rank_space
#include "runtime/attention/rank_space.h"

#include <benchmark/benchmark.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "runtime/block_cache.h"
#include "tests/testing/synthetic_checkpoint.h"
#include "tests/testing/temporary_directory.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using testing::random_normal;

constexpr std::int64_t kTokens = 8192;

struct Shape {
  std::int64_t key_rank,
      value_rank;     // of one latent where they are equal, else of two side by side
  std::int64_t kept;  // key channels that are numbers of the latent

  std::int64_t width() const { return key_rank == value_rank ? key_rank : key_rank + value_rank; }
};
// A group of four with 0.7 of the width; the same with 0.7 of its channels kept; one layer's own factors.
constexpr Shape kShapes[] = {{2867, 2867, 0}, {2867, 2867, 717}, {384, 576, 0}};

std::unique_ptr<Decoder> make_decoder() {
  testing::SyntheticCheckpoint model;
  model.num_layers = 1;
  model.num_heads = 32;
  model.num_kv_heads = 8;
  model.head_dim = 128;
  model.max_position_embeddings = 2 * kTokens;
  const testing::TemporaryDirectory directory;
  testing::write_synthetic_checkpoint(directory.path(), model);
  return std::make_unique<Decoder>(Checkpoint::open(directory.path()), at::kBFloat16);
}

at::Tensor random_rows(std::int64_t rows, std::int64_t columns, std::uint64_t seed) {
  return (random_normal({rows, columns}, seed) * 0.02).to(at::kBFloat16);
}

Reconstruction make_layer(const Shape& shape, std::int64_t kv_dim) {
  Reconstruction layer{random_rows(kv_dim, shape.key_rank, 1),
                       random_rows(kv_dim, shape.value_rank, 2)};
  layer.key.narrow(0, 0, shape.kept).copy_(at::eye(shape.key_rank).narrow(0, 0, shape.kept));
  layer.kept = kept_channels(layer.key);
  return layer;
}

double seconds(const auto& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void rank_space(benchmark::State& state) {
  const c10::InferenceMode guard;
  BlockCache::of_process();  // as in kvrun
  const Shape& shape = kShapes[state.range(0)];
  const auto decoder = make_decoder();
  const ModelConfig& config = decoder->config();
  GroupFactors factors;
  factors.key_rank = shape.key_rank;
  factors.value_rank = shape.value_rank;
  const Reconstruction layer = make_layer(shape, config.kv_dim());
  const at::Tensor latents = random_rows(kTokens, shape.width(), 3);
  RowStore store(std::make_shared<KvPool>(16), {.shape = {shape.width()}, .dtype = at::kBFloat16});
  store.append(latents);
  const LatentRange range{store, at::arange(kTokens, at::kInt), layer, 0, kTokens};
  const at::Tensor query = random_normal({config.num_heads, config.head_dim}, 4).to(at::kBFloat16);
  // Keys, scores and sums of latents, as columns of a product with the latents.
  const std::int64_t columns = config.kv_dim() - shape.kept +
                               config.num_heads * config.head_dim / shape.key_rank +
                               config.num_heads * shape.value_rank / shape.key_rank;
  const at::Tensor keys = latents.narrow(1, 0, shape.key_rank).contiguous();
  const at::Tensor weight = random_rows(columns, shape.key_rank, 5);
  std::vector<double> ratios, products;
  for (auto _ : state) {
    products.push_back(seconds([&] { benchmark::DoNotOptimize(at::linear(keys, weight)); }));
    const double attention = seconds([&] {
      benchmark::DoNotOptimize(rank_space_attention(*decoder, 0, factors, query, range).output);
    });
    state.SetIterationTime(attention);
    ratios.push_back(attention / products.back());
  }
  const auto median = [](std::vector<double>& numbers) {
    std::sort(numbers.begin(), numbers.end());
    return numbers[numbers.size() / 2];
  };
  state.counters["ratio"] = median(ratios);
  state.counters["product_ms"] = 1e3 * median(products);
}
BENCHMARK(rank_space)
    ->DenseRange(0, 2)
    ->ArgName("shape")
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace kvc
