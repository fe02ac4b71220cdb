// Products with weights that are not in the cache, of few rows and of prompts: ours, LibTorch's, and reading alone.
#include <ATen/ATen.h>
#include <benchmark/benchmark.h>
#include <c10/core/InferenceMode.h>

#include <cstdint>
#include <vector>

#include "model/int8_linear.h"
#include "model/parallel.h"
#include "model/row_products.h"
#include "model/tensor_memory.h"
#include "tests/bench/read_stream.h"

namespace kvc {
namespace {

constexpr std::int64_t kBytes = std::int64_t{1} << 28;  // read in turn: more than any cache holds

struct Shape {
  std::int64_t out, in;
};
constexpr Shape kShapes[] = {{9728, 896},  {896, 4864}, {151936, 896}, {28672, 4096},
                             {4096, 4096}, {896, 896},  {1152, 896}};
constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16, at::kHalf};

void read(benchmark::State& state) {
  const at::Tensor memory = empty_weight({kBytes}, at::kByte).fill_(1);
  for (auto _ : state) {
    parallel_pieces(kBytes, 1 << 16, [&](std::int64_t begin, std::int64_t end) {
      read_stream(memory.const_data_ptr<std::uint8_t>() + begin,
                  static_cast<std::size_t>(end - begin));
    });
  }
  state.SetBytesProcessed(state.iterations() * kBytes);
}

// Weights of one shape, as many as exceed the cache.
std::vector<at::Tensor> make_weights(const Shape& shape, at::ScalarType type) {
  std::vector<at::Tensor> weights;
  std::int64_t bytes = 0;
  while (bytes < kBytes) {
    weights.push_back(empty_weight({shape.out, shape.in}, type).fill_(0.01));
    bytes += static_cast<std::int64_t>(weights.back().nbytes());
  }
  return weights;
}

template <typename Product>
void run(benchmark::State& state, const Product& product) {
  const c10::InferenceMode guard;
  const Shape& shape = kShapes[state.range(0)];
  const at::ScalarType type = kTypes[state.range(1)];
  const std::vector<at::Tensor> weights = make_weights(shape, type);
  const at::Tensor x = at::randn({state.range(2), shape.in}).to(type);
  std::size_t index = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(product(x, weights[index++ % weights.size()]));
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(weights[0].nbytes()));
}

void ours(benchmark::State& state) {
  run(state, [](const at::Tensor& x, const at::Tensor& w) { return multiply_few_rows(x, w, {}); });
}

void torch(benchmark::State& state) {
  run(state, [](const at::Tensor& x, const at::Tensor& w) { return at::linear(x, w); });
}

void int8(benchmark::State& state) {
  const c10::InferenceMode guard;
  const Shape& shape = kShapes[state.range(0)];
  std::vector<Linear> weights;
  std::int64_t bytes = 0, of_one = 0;
  while (bytes < kBytes) {
    weights.push_back(empty_int8({shape.out, shape.in}));
    weights.back().weight.fill_(3);
    weights.back().scales.fill_(0.001);
    of_one =
        static_cast<std::int64_t>(weights.back().weight.nbytes() + weights.back().scales.nbytes());
    bytes += of_one;
  }
  const at::Tensor x = at::randn({state.range(1), shape.in}).to(at::kBFloat16);
  std::size_t index = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(weights[index++ % weights.size()](x));
  }
  state.SetBytesProcessed(state.iterations() * of_one);
}

// Products of a prompt: items are multiplications and additions.
template <typename Product>
void run_many_rows(benchmark::State& state, const Product& product) {
  const c10::InferenceMode guard;
  const Shape& shape = kShapes[state.range(0)];
  const std::vector<at::Tensor> weights = make_weights(shape, at::kBFloat16);
  for (const at::Tensor& weight : weights) {  // a processor may be slower where bits differ
    weight.copy_(&weight == &weights[0] ? at::randn_like(weight) : weights[0]);
  }
  const at::Tensor x = at::randn({state.range(1), shape.in}).to(at::kBFloat16);
  std::size_t index = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(product(x, weights[index++ % weights.size()]));
  }
  state.SetItemsProcessed(state.iterations() * 2 * state.range(1) * shape.in * shape.out);
}

void many_rows_ours(benchmark::State& state) {
  run_many_rows(
      state, [](const at::Tensor& x, const at::Tensor& w) { return multiply_bfloat16(x, w, {}); });
}

void many_rows_torch(benchmark::State& state) {
  run_many_rows(state, [](const at::Tensor& x, const at::Tensor& w) { return at::linear(x, w); });
}

// The rate of large products: items are multiplications and additions.
void gemm(benchmark::State& state) {
  const c10::InferenceMode guard;
  constexpr std::int64_t kRows = 2048, kSize = 4096;
  const at::ScalarType type = kTypes[state.range(0)];
  const at::Tensor x = at::randn({kRows, kSize}).to(type);
  const at::Tensor weight = at::randn({kSize, kSize}).to(type);
  for (auto _ : state) {
    benchmark::DoNotOptimize(at::linear(x, weight));
  }
  state.SetItemsProcessed(state.iterations() * 2 * kRows * kSize * kSize);
}

BENCHMARK(read)->UseRealTime();
BENCHMARK(gemm)->ArgName("type")->Arg(0)->Arg(1)->UseRealTime();
BENCHMARK(ours)
    ->ArgNames({"shape", "type", "rows"})
    ->ArgsProduct({{0, 1, 2, 3}, {0, 1, 2}, {1, 2, 4, 8}})
    ->UseRealTime();
BENCHMARK(torch)
    ->ArgNames({"shape", "type", "rows"})
    ->ArgsProduct({{0, 1, 2, 3}, {0, 1, 2}, {1, 2, 4, 8}})
    ->UseRealTime();
BENCHMARK(int8)
    ->ArgNames({"shape", "rows"})
    ->ArgsProduct({{0, 1, 2, 3}, {1, 2, 4, 8, 16, 17, 32, 512}})
    ->UseRealTime();
const std::vector<std::vector<std::int64_t>> kManyRows = {{0, 1, 3, 4, 5, 6},
                                                          {9, 16, 33, 64, 128, 512, 2048}};
BENCHMARK(many_rows_ours)->ArgNames({"shape", "rows"})->ArgsProduct(kManyRows)->UseRealTime();
BENCHMARK(many_rows_torch)->ArgNames({"shape", "rows"})->ArgsProduct(kManyRows)->UseRealTime();

}  // namespace
}  // namespace kvc
