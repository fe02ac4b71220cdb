#include <algorithm>
#include <array>

#include "model/eigen/back_transform.h"
#include "model/eigen/reflector_kernel.h"
#include "model/parallel.h"

namespace kvc {
namespace {

// Neighbouring sweeps whose reflectors of one step follow each other on the same rows of a panel, which
// stay in the cache meanwhile, as do the reflectors from one panel to the next.
constexpr std::int64_t kSweepsTogether = 256;
constexpr std::int64_t kGroupRows = kBandWidth + kReflectorGroup - 1;

// Panels of kPanelColumns eigenvectors, each [padded rows, kPanelColumns] and contiguous.
class Panels {
 public:
  Panels(std::int64_t n, std::int64_t num_columns)
      : n_(n),
        rows_(n + 2 * kBandWidth),
        num_columns_(num_columns),
        count_((num_columns + kPanelColumns - 1) / kPanelColumns),
        values_(at::empty({count_, rows_, kPanelColumns}, at::kDouble)),
        data_(values_.mutable_data_ptr<double>()) {}

  std::int64_t count() const { return count_; }
  double* row(std::int64_t panel, std::int64_t row) {
    return data_ + (panel * rows_ + row) * kPanelColumns;
  }

  // Rows in turn, each to all of the panels: z is read in the order in which it lies.
  void load(std::int64_t begin, std::int64_t end, const at::Tensor& z,
            const std::vector<std::int64_t>& columns) {
    for (std::int64_t r = 0; r < rows_; ++r) {
      const double* from = z.const_data_ptr<double>() + r * z.stride(0);
      for (std::int64_t panel = begin; panel < end; ++panel) {
        double* to = row(panel, r);
        const std::int64_t used = r < n_ ? width(panel) : 0;
        const std::int64_t* column = columns.data() + panel * kPanelColumns;
        for (std::int64_t i = 0; i < used; ++i) {
          to[i] = from[column[i]];
        }
        std::fill(to + used, to + kPanelColumns, 0.0);
      }
    }
  }

  void store(std::int64_t begin, std::int64_t end, at::Tensor& z) {
    for (std::int64_t r = 0; r < n_; ++r) {
      double* to = z.mutable_data_ptr<double>() + r * z.stride(0);
      for (std::int64_t panel = begin; panel < end; ++panel) {
        std::copy_n(row(panel, r), width(panel), to + panel * kPanelColumns);
      }
    }
  }

 private:
  std::int64_t width(std::int64_t panel) const {
    return std::min(kPanelColumns, num_columns_ - panel * kPanelColumns);
  }

  std::int64_t n_, rows_, num_columns_, count_;
  at::Tensor values_;
  double* data_;
};

// V and W = V T of kReflectorGroup sweeps' reflectors at one step.
struct alignas(64) Group {
  std::array<double, kGroupRows * kReflectorGroup> v, w;
  std::int64_t first_row = 0;
  bool identity = true;
};

void load_group(const ChaseReflectors& reflectors, std::int64_t sweep, std::int64_t step,
                Group& group) {
  group.first_row = ChaseReflectors::first_row(sweep, step);
  group.identity = true;
  group.v.fill(0);
  std::array<double, kReflectorGroup> scales{};
  for (std::int64_t i = 0; i < kReflectorGroup; ++i) {
    if (sweep + i >= reflectors.num_sweeps() || step >= reflectors.num_steps(sweep + i)) {
      continue;
    }
    const double* v = reflectors.vector(sweep + i, step);
    double* to = &group.v[static_cast<std::size_t>(i * kReflectorGroup + i)];
    for (std::int64_t r = 0; r < kBandWidth; ++r) {
      to[r * kReflectorGroup] = v[r];
    }
    scales[static_cast<std::size_t>(i)] = reflectors.scale(sweep + i, step);
    group.identity = group.identity && scales[static_cast<std::size_t>(i)] == 0;
  }
  join_reflectors(group.v.data(), scales.data(), kGroupRows, group.w.data());
}

// The groups of step `step` of sweeps [sweep, end), the latest sweeps first.
void load_groups(const ChaseReflectors& reflectors, std::int64_t sweep, std::int64_t end,
                 std::int64_t step, std::vector<Group>& groups) {
  groups.clear();
  for (std::int64_t s = end - kReflectorGroup; s >= sweep; s -= kReflectorGroup) {
    if (s < reflectors.num_sweeps() && step < reflectors.num_steps(s)) {
      groups.emplace_back();
      load_group(reflectors, s, step, groups.back());
    }
  }
}

// Q2 is the product of all reflectors in the order of sweeps, then steps; the last is applied first. A
// reflector shares no row with those of later sweeps' later steps, so that a step of many sweeps
// may be taken before their next step.
void apply_to_panels(const ChaseReflectors& reflectors, Panels& panels, std::int64_t begin,
                     std::int64_t end) {
  std::vector<Group> groups;
  const std::int64_t num_sweeps = reflectors.num_sweeps();
  for (std::int64_t sweep = (num_sweeps - 1) / kSweepsTogether * kSweepsTogether; sweep >= 0;
       sweep -= kSweepsTogether) {
    for (std::int64_t step = 0; step < reflectors.num_steps(sweep); ++step) {
      load_groups(reflectors, sweep, sweep + kSweepsTogether, step, groups);
      for (std::int64_t panel = begin; panel < end; ++panel) {
        for (const Group& group : groups) {
          if (!group.identity) {
            apply_reflectors(group.v.data(), group.w.data(), kGroupRows,
                             panels.row(panel, group.first_row));
          }
        }
      }
    }
  }
}

}  // namespace

void apply_chase(const ChaseReflectors& reflectors, at::Tensor& z,
                 const std::vector<std::int64_t>& columns) {
  Panels panels(z.size(0), z.size(1));
  parallel_pieces(panels.count(), 1, [&](std::int64_t begin, std::int64_t end) {
    panels.load(begin, end, z, columns);
  });
  parallel_pieces(panels.count(), 1, [&](std::int64_t begin, std::int64_t end) {
    if (reflectors.num_sweeps() > 0) {
      apply_to_panels(reflectors, panels, begin, end);
    }
    panels.store(begin, end, z);
  });
}

}  // namespace kvc
