#include "validate/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "validate/page.h"

namespace kvc {
namespace {

// Size of a chart and of its plot area, in SVG units.
constexpr double kWidth = 760, kHeight = 280;
constexpr double kLeft = 80, kRight = 16, kTop = 22, kBottom = 46;
constexpr double kBase = kHeight - kBottom;
constexpr double kSlack = 1e-9;  // of a tick: rounding

double x_of(const Axis& axis, double value) {
  return kLeft + (value - axis.begin) / (axis.end - axis.begin) * (kWidth - kLeft - kRight);
}

double y_of(const Axis& axis, double value) {
  return kBase - (value - axis.begin) / (axis.end - axis.begin) * (kBase - kTop);
}

std::string open_chart(const Axis& x, const Axis& y) {
  std::string svg = fmt::format("<div class=\"wide\"><svg viewBox=\"0 0 {} {}\" role=\"img\">\n",
                                kWidth, kHeight);
  for (const Tick& tick : y.ticks) {
    const double at = y_of(y, tick.at);
    svg += fmt::format(
        "<line class=\"grid\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>"
        "<text class=\"axis\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n",
        kLeft, kWidth - kRight, at, at, kLeft - 8, at + 4, tick.label);
  }
  for (const Tick& tick : x.ticks) {
    const double at = x_of(x, tick.at);
    svg += fmt::format(
        "<line class=\"tick\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>"
        "<text class=\"axis\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n",
        at, at, kBase, kBase + 5, at, kBase + 18, tick.label);
  }
  svg += fmt::format(
      "<text class=\"axis\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n"
      "<text class=\"axis\" transform=\"translate(14 {:.1f}) rotate(-90)\" "
      "text-anchor=\"middle\">{}</text>\n",
      (kLeft + kWidth - kRight) / 2, kHeight - 8, x.label, (kTop + kBase) / 2, y.label);
  return svg;
}

std::string close_chart() {
  return fmt::format(
      "<line class=\"base\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" "
      "y2=\"{:.1f}\"/>\n</svg></div>\n",
      kLeft, kWidth - kRight, kBase, kBase);
}

// Labels come after all lines, one below the other, so that none is crossed out.
std::string mark_lines(const Axis& x, const std::vector<Mark>& marks) {
  std::string lines, labels;
  double label_y = kTop + 2;
  for (const Mark& mark : marks) {
    const double at = std::clamp(x_of(x, mark.at), kLeft, kWidth - kRight);
    const bool flip = at > kWidth - 150;  // keeps the label inside the chart
    lines += fmt::format(
        "<line class=\"mark\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n", at, at,
        kTop - 8, kBase);
    labels += fmt::format(
        "<text class=\"label\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n",
        at + (flip ? -5 : 5), label_y, flip ? "end" : "start", mark.label);
    label_y += 15;
  }
  return lines + labels;
}

std::string line(const Axis& x, const Axis& y, const std::vector<Point>& points,
                 bool is_joined = true) {
  std::string path, dots;
  for (const Point& point : points) {
    const double at_x = x_of(x, point.x), at_y = y_of(y, point.y);
    path += fmt::format("{}{:.1f},{:.1f}", path.empty() ? "" : " ", at_x, at_y);
    dots += fmt::format(
        "<circle class=\"dot\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"><title>{}</title></circle>\n",
        at_x, at_y, point.tip);
  }
  return (is_joined ? fmt::format("<polyline class=\"line\" points=\"{}\"/>\n", path) : "") + dots;
}

// 1, 2 or 5 times a power of ten, at most five of which make up `length`.
double round_step(double length) {
  const double power = std::pow(10, std::floor(std::log10(length / 5)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power * 5 >= length * (1 - kSlack)) {
      return factor * power;
    }
  }
  return 10 * power;
}

}  // namespace

Axis axis_between(double begin, double end, const std::string& label) {
  const double step = round_step(end - begin);
  Axis axis{begin, end, {}, label};
  for (double i = std::ceil(begin / step - kSlack) + 0.0; i * step <= end + kSlack * step; i += 1) {
    axis.ticks.push_back({i * step, fmt::format("{:.6g}", i * step)});
  }
  return axis;
}

Axis axis_from_zero(double largest, const std::string& label) {
  if (!(largest > 0)) {
    largest = 1;
  }
  const double step = round_step(largest);
  return axis_between(0, step * std::ceil(largest / step - kSlack), label);
}

Axis axis_of_decades(double begin, double end, const std::string& label) {
  Axis axis{std::floor(begin + kSlack), std::ceil(end - kSlack), {}, label};
  axis.end = std::max(axis.end, axis.begin + 1);
  for (double decade = axis.begin; decade <= axis.end; decade += 1) {
    axis.ticks.push_back(
        {decade, fmt::format("10<tspan dy=\"-5\" font-size=\"9\">{:.0f}</tspan>", decade)});
  }
  return axis;
}

std::string bar_chart(const Axis& x, const Axis& y, const std::vector<Bar>& bars,
                      const std::vector<Mark>& marks) {
  std::string svg = open_chart(x, y);
  for (const Bar& bar : bars) {
    const double left = x_of(x, bar.begin) + 0.5, right = x_of(x, bar.end) - 0.5;
    const double top = y_of(y, bar.height);
    svg += fmt::format(
        "<rect class=\"bar\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\">"
        "<title>{}</title></rect>\n",
        left, top, right - left, kBase - top, bar.tip);
  }
  return svg + mark_lines(x, marks) + close_chart();
}

std::string line_chart(const Axis& x, const Axis& y, const std::vector<Point>& points) {
  return open_chart(x, y) + line(x, y, points) + close_chart();
}

std::string series_chart(const Axis& x, const Axis& y, const std::vector<Series>& series) {
  constexpr std::size_t kNumColours = 8;  // classes series0 to series7
  std::string svg = open_chart(x, y), legend;
  for (std::size_t i = 0; i < series.size(); ++i) {
    svg += fmt::format("<g class=\"series{}\">\n{}</g>\n", i % kNumColours,
                       line(x, y, series[i].points, series[i].is_joined));
    legend += fmt::format("<span class=\"series{}\"><b>●</b>{}</span>\n", i % kNumColours,
                          escape_html(series[i].name));
  }
  return "<div class=\"legend\">\n" + legend + "</div>\n" + svg + close_chart();
}

std::string histogram_chart(const Comparison& comparison) {
  const double last = KlHistogram::kFirst + KlHistogram::kNumBins * KlHistogram::kWidth;
  const Axis x =
      axis_of_decades(KlHistogram::kFirst, last,
                      "KL divergence of one position (outermost bins hold everything beyond)");
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

Axis layer_axis(std::size_t num_layers) {
  Axis x = axis_between(0, static_cast<double>(num_layers), "layer");
  std::erase_if(x.ticks, [&x](const Tick& tick) {
    return tick.at != std::floor(tick.at) || tick.at >= x.end;
  });
  for (Tick& tick : x.ticks) {
    tick.at += 0.5;  // a bar's middle
  }
  return x;
}

std::string layer_chart(const std::vector<LayerShare>& layers) {
  std::vector<Bar> bars;
  double highest = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto at = static_cast<double>(i);
    highest = std::max(highest, layers[i].bits);
    bars.push_back(
        {at + 0.1, at + 0.9, layers[i].bits,
         fmt::format("layer {}, {}: {:.2f} bits, {:.1f} % kept", i, to_string(layers[i].source),
                     layers[i].bits, 100 * layers[i].kept_ratio)});
  }
  return bar_chart(layer_axis(layers.size()), axis_from_zero(highest, "bits per number"), bars, {});
}

}  // namespace kvc
