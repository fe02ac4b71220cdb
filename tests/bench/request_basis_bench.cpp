// A request's principal directions, as kvrun finds them at the end of a prompt: the Gram matrix of its stacked
// rows, the leading eigenvectors, the latents. Rows come from a file (raw float32, row-major), so that a peer
// can be timed on the same ones:
//   request_basis_bench ROWS.f32 NUM_ROWS WIDTH RANK eigh|subspace
// Prints JSON: seconds (least of three), and the squared error that is lost beyond the least possible, relative to it.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>

#include "core/error.h"
#include "model/eigen/symmetric_eigen.h"
#include "runtime/compression/request_basis.h"

namespace {

constexpr std::int64_t kChunkTokens = 1024;

at::Tensor read_rows(const char* path, std::int64_t rows, std::int64_t width) {
  at::Tensor matrix = at::empty({rows, width}, at::kFloat);
  std::ifstream file(path, std::ios::binary);
  file.read(static_cast<char*>(matrix.mutable_data_ptr()),
            static_cast<std::streamsize>(matrix.nbytes()));
  KVC_CHECK(file.good(), "{}: expected {} x {} float32 values", path, rows, width);
  return matrix;
}

struct Found {
  at::Tensor directions, latents;
  double seconds = 0;
};

Found find(const at::Tensor& rows, std::int64_t rank, kvc::BasisSolver solver) {
  const auto start = std::chrono::steady_clock::now();
  kvc::GramSums sums(rows.size(1));
  for (std::int64_t first = 0; first < rows.size(0); first += kChunkTokens) {
    sums.add(rows.narrow(0, first, std::min(kChunkTokens, rows.size(0) - first)));
  }
  Found found;
  found.directions = kvc::leading_directions(sums.matrix(), rank, solver);
  found.latents = at::mm(rows, found.directions.t());
  found.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return found;
}

double least_error(const at::Tensor& rows, std::int64_t rank) {
  const at::Tensor wide = rows.to(at::kDouble);
  const kvc::SymmetricEigen eigen = kvc::symmetric_eigen(at::mm(wide.t(), wide), rank);
  return eigen.values.slice(0, rank).clamp_min(0).sum().item<double>();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    fmt::print(stderr, "usage: request_basis_bench ROWS.f32 NUM_ROWS WIDTH RANK eigh|subspace\n");
    return 2;
  }
  const at::Tensor rows = read_rows(argv[1], std::atoll(argv[2]), std::atoll(argv[3]));
  const std::int64_t rank = std::atoll(argv[4]);
  const kvc::BasisSolver solver = kvc::parse_basis_solver(argv[5]);
  find(rows, rank, solver);  // loads what the others find loaded
  const Found found = find(rows, rank, solver);
  const double least = least_error(rows, rank);
  const double lost = (rows - at::mm(found.latents, found.directions))
                          .to(at::kDouble)
                          .square()
                          .sum()
                          .item<double>();
  fmt::print("{{\"seconds\": {:.6f}, \"excess\": {:.3e}}}\n", found.seconds, lost / least - 1);
  return 0;
}
