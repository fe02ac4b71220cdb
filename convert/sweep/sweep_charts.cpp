#include "convert/sweep/sweep_charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "convert/sweep/sweep_points.h"
#include "convert/sweep/sweep_rows.h"
#include "validate/chart.h"
#include "validate/page.h"

namespace kvc {
namespace {

constexpr std::size_t kMostCurves = 8;

// Candidates that differ in their ratio or type of cache alone are one line of the chart.
std::string series_name(const std::string& name) {
  std::string rest = name;
  for (const char* option : {"--kept-ratio", "--kv-dtype"}) {
    const std::size_t begin = rest.find(option);
    if (begin != std::string::npos) {
      const std::size_t value = rest.find_first_not_of(" =", begin + std::string(option).size());
      const std::size_t end = std::min(rest.find(' ', value), rest.size());
      rest = rest.substr(0, begin) + (end < rest.size() ? rest.substr(end + 1) : "");
    }
  }
  return rest.substr(0, rest.find_last_not_of(' ') + 1);
}

}  // namespace

std::string quality_chart(const Json& sweep) {
  std::vector<Series> series;
  std::map<std::string, std::size_t> places;
  double lowest = INFINITY, highest = -INFINITY, widest = 0;
  const auto add = [&](Series& to, const std::string& name, double kept, const SweepKld& kld) {
    const double y = std::log10(kld.mean);
    lowest = std::min(lowest, y);
    highest = std::max(highest, y);
    widest = std::max(widest, kept);
    to.points.push_back({kept, y, escape_html(fmt::format("{}: {}", name, kld_text(kld)))});
  };
  for (const Json* row : measured_rows(sweep["candidates"])) {
    const SweepKld kld = kld_of(*row);
    if (!(kld.mean > 0)) {
      continue;  // no logarithm
    }
    const auto [place, is_new] = places.try_emplace(series_name(name_of(*row)), series.size());
    if (is_new) {
      series.push_back({place->first, {}});
    }
    add(series[place->second], name_of(*row), kept_of(*row), kld);
  }
  Series others{.name = "other caches", .points = {}, .is_joined = false};
  for (const Json& point : sweep["points"]) {
    if (const SweepKld kld = point_kld(point); kld.mean > 0) {
      add(others, name_of(point), kept_of(point), kld);
    }
  }
  if (!others.points.empty()) {
    series.push_back(std::move(others));
  }
  return series.empty() ? ""
                        : series_chart(axis_from_zero(widest, "kept_ratio"),
                                       axis_of_decades(lowest, highest, "KL divergence"), series);
}

std::string position_chart(const Json& sweep) {
  std::vector<Series> series;
  double lowest = INFINITY, highest = -INFINITY, first = INFINITY, last = 0;
  for (const Json* row : frontier(sweep["candidates"])) {
    if (series.size() == kMostCurves) {
      break;
    }
    Series line{name_of(*row), {}};
    for (const Json& range : continuation_of(*row)["kl_divergence"]["by_position"]) {
      if (!range["mean"].is_number() || !(range["mean"].get<double>() > 0)) {
        continue;
      }
      const double begin = range["begin"].get<double>(), end = range["end"].get<double>();
      const double mean = range["mean"].get<double>(), y = std::log10(mean);
      lowest = std::min(lowest, y);
      highest = std::max(highest, y);
      first = std::min(first, begin);
      last = std::max(last, end);
      line.points.push_back({(begin + end - 1) / 2, y,
                             fmt::format("{:.0f} to {:.0f}: {:.3g}", begin, end - 1, mean)});
    }
    series.push_back(std::move(line));
  }
  return last == 0 ? ""
                   : series_chart(axis_between(first, last, "position in the sequence, tokens"),
                                  axis_of_decades(lowest, highest, "mean KL divergence"), series);
}

std::string layer_chart(const Json& sweep) {
  std::vector<Series> series;
  double highest = 0, last = 0;
  for (const Json* row : frontier(sweep["candidates"])) {
    const Json layers = (*row)["validation"].value("layers", Json::array());
    if (series.size() == kMostCurves || (*row)["cache"].is_null() || layers.empty()) {
      continue;  // a policy keeps tokens, not bits
    }
    Series line{name_of(*row), {}};
    for (const Json& layer : layers) {
      const double bits = layer["bits"].get<double>(), x = layer["layer"].get<double>();
      highest = std::max(highest, bits);
      last = std::max(last, x);
      line.points.push_back({x, bits, fmt::format("layer {:.0f}: {:.2f} bits", x, bits)});
    }
    series.push_back(std::move(line));
  }
  return last == 0 ? ""
                   : series_chart(axis_between(0, last, "layer"),
                                  axis_from_zero(highest, "bits per number"), series);
}

}  // namespace kvc
