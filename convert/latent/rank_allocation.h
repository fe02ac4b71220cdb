// Widths of latents.
#pragma once

#include <cstdint>
#include <vector>

namespace kvc {

// `width` rounded down to a multiple; never zero, never above `cap` (which need not be a multiple).
std::int64_t round_rank(double width, std::int64_t multiple, std::int64_t cap);

// Shares `total` among groups in proportion to `scores`, none above its cap; the rest of a capped
// group goes to the others. Rounded down to multiples; the remainder goes to the largest fractions
// (ties: lower index). Scores that are all zero count as equal.
std::vector<std::int64_t> allocate_ranks(const std::vector<double>& scores, std::int64_t total,
                                         const std::vector<std::int64_t>& caps,
                                         std::int64_t multiple);

// How many coefficients each basis keeps when all of a model's compete. `eigenvalues[i]` of basis i, descending. Takes `multiple` coefficients at a time, those of the largest sum
// first, until `total` are taken or none are left; every basis has at least `multiple` (or all it has), at
// most caps[i]. Ties: lower index.
std::vector<std::int64_t> allocate_by_energy(const std::vector<std::vector<double>>& eigenvalues,
                                             std::int64_t total,
                                             const std::vector<std::int64_t>& caps,
                                             std::int64_t multiple);

}  // namespace kvc
