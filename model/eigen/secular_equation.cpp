#include "model/eigen/secular_equation.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "model/eigen/secular_kernel.h"

namespace kvc {
namespace {

constexpr double kEpsilon = std::numeric_limits<double>::epsilon();
constexpr int kMaxSteps = 400;  // bisection alone ends far earlier

// Where the equation's value is, and the parts to the left and right of the root's interval.
struct Evaluation {
  PoleSums left, right;
  double value = 0;
};

class RootSearch {
 public:
  RootSearch(const SecularEquation& equation, std::int64_t index)
      : equation_(equation),
        // The last root lies beyond both poles of its interpolation.
        pole_(std::min(index, equation.size() - 2)),
        last_(index == equation.size() - 1) {}

  SecularRoot solve() {
    choose_origin();
    double shift = first_guess();
    for (int step = 0; step < kMaxSteps; ++step) {
      const Evaluation at = evaluate(shift);
      const double size = 1 / equation_.rho + std::abs(at.left.value) + std::abs(at.right.value);
      const double slope = at.left.slope + at.right.slope;
      if (std::abs(at.value) <= kEpsilon * (8 * size + std::abs(shift) * slope)) {
        break;
      }
      (at.value < 0 ? low_ : high_) = shift;
      const double next = next_shift(at, shift);
      if (next == shift || std::abs(high_ - low_) <= 2 * kEpsilon * std::abs(shift)) {
        break;
      }
      shift = next;
    }
    return {origin_, shift};
  }

 private:
  double pole(std::int64_t offset) const {
    return equation_.poles[static_cast<std::size_t>(pole_ + offset)];
  }
  double weight(std::int64_t offset) const {
    return equation_.weights[static_cast<std::size_t>(pole_ + offset)];
  }

  Evaluation evaluate(double shift) const {
    const double* poles = equation_.poles.data();
    const double* weights = equation_.weights.data();
    const std::int64_t left = pole_ + 1;
    Evaluation at;
    at.left = sum_poles(poles, weights, left, origin_, shift);
    at.right = sum_poles(poles + left, weights + left, equation_.size() - left, origin_, shift);
    at.value = 1 / equation_.rho + at.left.value + at.right.value;
    return at;
  }

  // Evaluates at the middle of the interval to find the nearer pole; sets the bracket.
  void choose_origin() {
    if (last_) {
      double norm = 0;
      for (const double w : equation_.weights) {
        norm += w;
      }
      origin_ = pole(1);
      low_ = 0;
      high_ = equation_.rho * norm * (1 + 8 * kEpsilon * static_cast<double>(equation_.size()));
      middle_ = 0.5 * high_;
      at_middle_ = evaluate(middle_);
      return;
    }
    const double gap = pole(1) - pole(0);
    origin_ = pole(0);
    middle_ = 0.5 * gap;
    at_middle_ = evaluate(middle_);
    if (at_middle_.value >= 0) {
      low_ = 0;
      high_ = middle_;
    } else {
      origin_ = pole(1);
      middle_ -= gap;
      low_ = middle_;
      high_ = 0;
    }
  }

  // The poles beside the root exactly, all others as at the middle.
  double first_guess() const {
    const double d0 = pole(0) - origin_, d1 = pole(1) - origin_;
    const double rest = at_middle_.value - weight(0) / (d0 - middle_) - weight(1) / (d1 - middle_);
    // rest (d0 - x) (d1 - x) + w0 (d1 - x) + w1 (d0 - x) = 0
    return root_inside(rest, rest * (d0 + d1) + weight(0) + weight(1),
                       rest * d0 * d1 + weight(0) * d1 + weight(1) * d0, 0);
  }

  // Each side's sum is replaced by r + s / (d - x) with its value and slope at `shift`.
  double next_shift(const Evaluation& at, double shift) const {
    const double d0 = (pole(0) - origin_) - shift, d1 = (pole(1) - origin_) - shift;
    const double rest = at.value - d0 * at.left.slope - d1 * at.right.slope;
    const double slope = at.left.slope + at.right.slope;
    return root_inside(rest, (d0 + d1) * at.value - d0 * d1 * slope, d0 * d1 * at.value, shift);
  }

  // base + the root of a x^2 - b x + c that lies in the bracket, else a point that halves it.
  double root_inside(double a, double b, double c, double base) const {
    const double root = std::sqrt(std::max(0.0, b * b - 4 * a * c));
    const double q = 0.5 * (b + std::copysign(root, b));
    for (const double x : {base + c / q, base + q / a}) {
      if (x > low_ && x < high_) {
        return x;
      }
    }
    if (low_ == 0 || high_ == 0) {  // the root may be of any magnitude below
      return (low_ + high_) / 16;
    }
    return 0.5 * (low_ + high_);
  }

  const SecularEquation& equation_;
  std::int64_t pole_;
  bool last_;
  double origin_ = 0, low_ = 0, high_ = 0, middle_ = 0;
  Evaluation at_middle_;
};

}  // namespace

SecularRoot solve_secular(const SecularEquation& equation, std::int64_t index) {
  if (equation.size() == 1) {
    return {equation.poles[0], equation.rho * equation.weights[0]};
  }
  return RootSearch(equation, index).solve();
}

double secular_component(const std::vector<double>& poles, const std::vector<double>& origins,
                         const std::vector<double>& shifts, std::int64_t index) {
  const auto i = static_cast<std::size_t>(index);
  const double below =
      multiply_ratios(poles.data(), origins.data(), shifts.data(), index, poles[i]);
  const double above =
      multiply_ratios(poles.data() + i + 1, origins.data() + i + 1, shifts.data() + i + 1,
                      static_cast<std::int64_t>(poles.size()) - index - 1, poles[i]);
  const double own = (origins[i] - poles[i]) + shifts[i];
  return std::sqrt(std::max(0.0, own * below * above));
}

}  // namespace kvc
