#include "convert/principal/energy_allocation.h"

#include <algorithm>
#include <numeric>

namespace kvc {
namespace {

double energy_of_next(const std::vector<double>& eigenvalues, std::int64_t taken,
                      std::int64_t count) {
  const auto begin = eigenvalues.begin() + taken;
  return std::accumulate(begin, begin + count, 0.0) / static_cast<double>(count);
}

}  // namespace

std::vector<std::int64_t> allocate_by_energy(const std::vector<std::vector<double>>& eigenvalues,
                                             std::int64_t total,
                                             const std::vector<std::int64_t>& caps,
                                             std::int64_t multiple) {
  std::vector<std::int64_t> taken;
  for (std::size_t i = 0; i < eigenvalues.size(); ++i) {
    taken.push_back(std::min(multiple, caps[i]));
    total -= taken.back();
  }
  while (total > 0) {
    std::size_t best = taken.size();
    double most = -1;
    for (std::size_t i = 0; i < taken.size(); ++i) {
      const std::int64_t step = std::min(multiple, caps[i] - taken[i]);
      if (step <= 0 || step > total) {
        continue;
      }
      const double energy = energy_of_next(eigenvalues[i], taken[i], step);
      if (energy > most) {
        most = energy;
        best = i;
      }
    }
    if (best == taken.size()) {
      break;
    }
    const std::int64_t step = std::min(multiple, caps[best] - taken[best]);
    taken[best] += step;
    total -= step;
  }
  return taken;
}

}  // namespace kvc
