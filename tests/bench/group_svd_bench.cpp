// The factorisation of one group of four layers of an 8B model: 8192 x 4096 random float32 weights, rank
// 2867. With a file argument the matrix is read from it (raw float32, row-major), so that a peer can be
// timed on the same one: convert_bench [google-benchmark options] [matrix.f32]
// And eigendecompositions alone, by size.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <fstream>

#include "convert/latent/group_svd.h"
#include "core/error.h"
#include "model/eigen/symmetric_eigen.h"

namespace {

constexpr std::int64_t kRows = 2 * 4 * 1024, kHidden = 4096, kRank = 2867;

at::Tensor& matrix() {
  static at::Tensor value;
  return value;
}

at::Tensor read_matrix(const char* path) {
  at::Tensor matrix = at::empty({kRows, kHidden}, at::kFloat);
  std::ifstream file(path, std::ios::binary);
  file.read(static_cast<char*>(matrix.mutable_data_ptr()),
            static_cast<std::streamsize>(matrix.nbytes()));
  KVC_CHECK(file.good(), "{}: expected {} x {} float32 values", path, kRows, kHidden);
  return matrix;
}

void BM_FactorizeGroup(benchmark::State& state) {
  double optimum_error = 0;
  for (auto iteration : state) {
    const kvc::GroupFactorization factors =
        kvc::factorize_group(matrix().to(at::kDouble), at::Tensor(), kRank);
    optimum_error = factors.optimum_error;
    benchmark::DoNotOptimize(factors.latent_proj.const_data_ptr());
  }
  state.counters["optimum_error"] = optimum_error;
}
BENCHMARK(BM_FactorizeGroup)->Unit(benchmark::kMillisecond)->Iterations(1)->UseRealTime();

at::Tensor random_gram(std::int64_t n) {
  const at::Tensor x = at::randn({2 * n, n}, at::kDouble);
  return at::mm(x.t(), x);
}

void BM_SymmetricEigen(benchmark::State& state) {
  const std::int64_t n = state.range(0);
  const at::Tensor gram = random_gram(n);
  for (auto iteration : state) {
    benchmark::DoNotOptimize(kvc::symmetric_eigen(gram.clone(), n * 7 / 10));
  }
}
BENCHMARK(BM_SymmetricEigen)
    ->RangeMultiplier(2)
    ->Range(64, 4096)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (const char* threads = std::getenv("OMP_NUM_THREADS")) {
    at::set_num_threads(std::atoi(threads));
  }
  matrix() = argc > 1 ? read_matrix(argv[1]) : at::randn({kRows, kHidden}, at::kFloat);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
