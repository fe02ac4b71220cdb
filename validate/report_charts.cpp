#include "validate/report_charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "validate/chart.h"

namespace kvc {

std::string histogram_chart(const Comparison& comparison) {
  const double last = KlHistogram::kFirst + KlHistogram::kNumBins * KlHistogram::kWidth;
  Axis x{KlHistogram::kFirst,
         last,
         {},
         "KL divergence of one position (outermost bins hold everything beyond)"};
  for (double decade = KlHistogram::kFirst; decade <= last; decade += 1) {
    x.ticks.push_back(
        {decade, fmt::format("10<tspan dy=\"-5\" font-size=\"9\">{:.0f}</tspan>", decade)});
  }
  std::vector<Bar> bars;
  double highest = 0;
  for (int i = 0; i < KlHistogram::kNumBins; ++i) {
    const std::int64_t count = comparison.kl_histogram.counts[static_cast<std::size_t>(i)];
    const double begin = KlHistogram::kFirst + i * KlHistogram::kWidth;
    const double share =
        100 * static_cast<double>(count) / static_cast<double>(comparison.num_positions);
    highest = std::max(highest, share);
    if (count > 0) {
      bars.push_back({begin, begin + KlHistogram::kWidth, share,
                      fmt::format("{:.2g} to {:.2g}: {} positions, {:.2f} %", std::pow(10, begin),
                                  std::pow(10, begin + KlHistogram::kWidth), count, share)});
    }
  }
  std::vector<Mark> marks;
  const std::pair<double, const char*> values[] = {{comparison.kl_median, "median"},
                                                   {comparison.kl_divergence.mean, "mean"},
                                                   {comparison.kl_p99, "99 %"}};
  for (const auto& [value, name] : values) {
    if (value > 0) {
      marks.push_back({std::log10(value), fmt::format("{} {:.2g}", name, value)});
    }
  }
  return bar_chart(x, axis_from_zero(highest, "% of positions"), bars, marks);
}

std::string position_chart(const Comparison& comparison) {
  std::vector<Point> points;
  double highest = 0;
  std::int64_t last = 1;
  for (const PositionRange& range : comparison.kl_by_position) {
    last = std::max(last, range.end);
    if (std::isfinite(range.kl_divergence)) {
      highest = std::max(highest, range.kl_divergence);
      points.push_back({static_cast<double>(range.begin + range.end - 1) / 2, range.kl_divergence,
                        fmt::format("positions {} to {}: {:.3g}", range.begin, range.end - 1,
                                    range.kl_divergence)});
    }
  }
  const double first = static_cast<double>(
      comparison.kl_by_position.empty() ? 0 : comparison.kl_by_position.front().begin);
  const Axis x = axis_between(first, static_cast<double>(last), "position in the sequence, tokens");
  return line_chart(x, axis_from_zero(highest, "mean KL divergence"), points);
}

}  // namespace kvc
