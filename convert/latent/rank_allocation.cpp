#include "convert/latent/latent_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"

namespace kvc {
namespace {

// Real-valued shares: proportional to the scores, capped groups set aside until none overflows.
std::vector<double> proportional_shares(const std::vector<double>& scores, double total,
                                        const std::vector<std::int64_t>& caps) {
  const std::size_t count = scores.size();
  std::vector<double> shares(count, 0.0);
  std::vector<bool> capped(count, false);
  double left = total;
  for (bool changed = true; changed;) {
    changed = false;
    double sum = 0;
    for (std::size_t i = 0; i < count; ++i) {
      sum += capped[i] ? 0 : scores[i];
    }
    const double level = left;  // shared among the groups that are not capped yet
    for (std::size_t i = 0; i < count; ++i) {
      if (capped[i]) {
        continue;
      }
      shares[i] = sum > 0 ? level * scores[i] / sum : 0;
      if (shares[i] >= static_cast<double>(caps[i])) {
        shares[i] = static_cast<double>(caps[i]);
        capped[i] = changed = true;
        left -= shares[i];
      }
    }
  }
  return shares;
}

double energy_of_next(const std::vector<double>& eigenvalues, std::int64_t taken,
                      std::int64_t count) {
  const auto begin = eigenvalues.begin() + taken;
  return std::accumulate(begin, begin + count, 0.0) / static_cast<double>(count);
}

}  // namespace

std::int64_t round_rank(double width, std::int64_t multiple, std::int64_t cap) {
  constexpr double kRounding = 1e-9;  // 0.7 * 10 is 7, not 6
  if (width + kRounding >= static_cast<double>(cap)) {
    return cap;
  }
  const auto rank = static_cast<std::int64_t>(std::floor(width + kRounding));
  return std::min(cap, std::max(rank - rank % multiple, multiple));
}

std::vector<std::int64_t> allocate_ranks(const std::vector<double>& scores, std::int64_t total,
                                         const std::vector<std::int64_t>& caps,
                                         std::int64_t multiple) {
  KVC_CHECK(scores.size() == caps.size() && !scores.empty(), "allocate_ranks: {} scores, {} caps",
            scores.size(), caps.size());
  const bool all_zero = std::all_of(scores.begin(), scores.end(), [](double s) { return s == 0; });
  const std::vector<double> shares =
      proportional_shares(all_zero ? std::vector<double>(scores.size(), 1.0) : scores,
                          static_cast<double>(total), caps);

  std::vector<std::int64_t> ranks;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    ranks.push_back(round_rank(shares[i], multiple, caps[i]));
  }
  std::vector<std::size_t> order(shares.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto lost = [&](std::size_t i) { return shares[i] - static_cast<double>(ranks[i]); };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return lost(a) > lost(b); });
  std::int64_t left = total - std::accumulate(ranks.begin(), ranks.end(), std::int64_t{0});
  for (const std::size_t i : order) {
    const std::int64_t step = std::min(multiple, caps[i] - ranks[i]);
    if (step > 0 && step <= left) {
      ranks[i] += step;
      left -= step;
    }
  }
  return ranks;
}

std::vector<std::int64_t> allocate_by_energy(const std::vector<std::vector<double>>& eigenvalues,
                                             std::int64_t total,
                                             const std::vector<std::int64_t>& caps,
                                             std::int64_t multiple,
                                             const std::vector<double>& bytes) {
  KVC_CHECK(eigenvalues.size() == caps.size() && caps.size() == bytes.size(),
            "allocate_by_energy: {} bases, {} caps, {} costs", eigenvalues.size(), caps.size(),
            bytes.size());
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
      const double energy = energy_of_next(eigenvalues[i], taken[i], step) / bytes[i];
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
