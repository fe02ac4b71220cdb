#include "model/eigen/band_tridiagonal.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "model/parallel.h"

namespace kvc {
namespace {

// Sweeps that one thread advances together, a step each in turn, so that the band passes through its
// cache once for all of them.
constexpr std::int64_t kSweepsChased = 6;

class BandChase {
 public:
  BandChase(std::vector<double>& band, ChaseReflectors& reflectors)
      : band_(band.data()),
        reflectors_(reflectors),
        num_groups_((reflectors.num_sweeps() + kSweepsChased - 1) / kSweepsChased),
        finished_(static_cast<std::size_t>(num_groups_)) {}

  // Takes groups of sweeps, the earliest first, until none is left. Every thread calls this; the
  // group before one's own is always done or in the hands of a running thread.
  void work() {
    for (std::int64_t group = next_group_++; group < num_groups_; group = next_group_++) {
      advance(group);
    }
  }

 private:
  void advance(std::int64_t group) {
    const std::int64_t first = group * kSweepsChased;
    const std::int64_t end = std::min(first + kSweepsChased, reflectors_.num_sweeps());
    const std::int64_t turns = reflectors_.num_steps(first) + end - first - 1;
    for (std::int64_t turn = 0; turn < turns; ++turn) {
      await_sweep(group, first, turn);
      for (std::int64_t sweep = first; sweep < end; ++sweep) {
        const std::int64_t step = turn - (sweep - first);
        if (step >= 0 && step < reflectors_.num_steps(sweep)) {
          run_step(sweep, step);
        }
      }
      const std::int64_t last_step = turn - (end - 1 - first);
      if (last_step >= 0) {
        finished_[static_cast<std::size_t>(group)].store(last_step + 1, std::memory_order_release);
      }
    }
  }

  // Step `step` of sweep `first` needs step + 1 of the sweep before it.
  void await_sweep(std::int64_t group, std::int64_t first, std::int64_t step) const {
    if (group == 0) {
      return;
    }
    const std::atomic<std::int64_t>& finished = finished_[static_cast<std::size_t>(group) - 1];
    const std::int64_t needed = std::min(step + 2, reflectors_.num_steps(first - 1));
    for (int spins = 0; finished.load(std::memory_order_acquire) < needed; ++spins) {
      if (spins > 1000) {
        std::this_thread::yield();
      }
    }
  }

  void run_step(std::int64_t sweep, std::int64_t step) {
    const std::int64_t row = ChaseReflectors::first_row(sweep, step);
    double* v = reflectors_.vector(sweep, step);
    if (step == 0) {
      double* column = band_ + sweep * kBandStride + row;
      std::copy(column, column + kBandWidth, v);
      std::fill(column, column + kBandWidth, 0.0);
      reflectors_.scale(sweep, 0) = make_reflector(v, column);
    }
    const double scale = reflectors_.scale(sweep, step);
    reflect_diagonal(band_, row, v, scale);
    if (step + 1 < reflectors_.num_steps(sweep)) {
      chase_block(band_, row, v, scale, reflectors_.vector(sweep, step + 1),
                  &reflectors_.scale(sweep, step + 1));
    }
  }

  double* band_;
  ChaseReflectors& reflectors_;
  std::int64_t num_groups_;
  std::atomic<std::int64_t> next_group_ = 0;
  std::vector<std::atomic<std::int64_t>> finished_;  // steps of each group's last sweep
};

}  // namespace

ChaseReflectors::ChaseReflectors(std::int64_t n) : n_(n), begins_{0} {
  for (std::int64_t sweep = 0; sweep + 2 < n; ++sweep) {
    begins_.push_back(begins_.back() + (n - sweep - 2) / kBandWidth + 1);
  }
  vectors_.reset(new double[static_cast<std::size_t>(begins_.back() * kBandWidth)]);
  scales_.resize(static_cast<std::size_t>(begins_.back()));
}

Tridiagonal chase_band(std::vector<double>& band, ChaseReflectors& reflectors) {
  BandChase chase(band, reflectors);
  parallel_pieces(reflectors.num_sweeps(), kSweepsChased,
                  [&](std::int64_t, std::int64_t) { chase.work(); });
  Tridiagonal result;
  for (std::int64_t i = 0; i < reflectors.size(); ++i) {
    const double* column = &band[static_cast<std::size_t>(i * (kBandStride + 1))];
    result.diagonal.push_back(column[0]);
    if (i + 1 < reflectors.size()) {
      result.subdiagonal.push_back(column[1]);
    }
  }
  return result;
}

}  // namespace kvc
