// Coefficients of each basis when all bases of a model compete.
#pragma once

#include <cstdint>
#include <vector>

namespace kvc {

// `eigenvalues[i]` of basis i, descending. Takes `multiple` coefficients at a time, largest sum first, until
// `total` are taken or none are left; every basis has at least `multiple` (or all it has), at most caps[i].
// Ties: lower index.
std::vector<std::int64_t> allocate_by_energy(const std::vector<std::vector<double>>& eigenvalues,
                                             std::int64_t total,
                                             const std::vector<std::int64_t>& caps,
                                             std::int64_t multiple);

}  // namespace kvc
