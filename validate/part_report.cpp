#include "validate/part_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "validate/chart.h"
#include "validate/report.h"

namespace kvc {
namespace {

double sum_of(const std::vector<PartCost>& parts) {
  double sum = 0;
  for (const PartCost& part : parts) {
    sum += part.kl_divergence.mean;
  }
  return sum;
}

}  // namespace

Json parts_json(const ValidationReport& report) {
  Json parts = Json::array();
  for (const PartCost& part : report.parts) {
    parts.push_back({{"first_layer", part.layers.first},
                     {"num_layers", part.layers.count},
                     {"kl_divergence", to_json(part.kl_divergence)}});
  }
  return parts.empty() ? Json(nullptr) : parts;
}

std::string parts_text(const ValidationReport& report) {
  std::string text;
  for (const PartCost& part : report.parts) {
    text += fmt::format("  {:<24}{:>24}\n", to_string(part.layers), with_error(part.kl_divergence));
  }
  return text.empty() ? ""
                      : fmt::format("\n  {:<24}{:>24}\n", "converted alone", "KL divergence") +
                            text + fmt::format("  {:<24}{:>24.5g}\n", "sum", sum_of(report.parts));
}

std::string parts_html(const ValidationReport& report) {
  if (report.parts.empty()) {
    return "";
  }
  std::vector<Bar> bars;
  double highest = 0;
  for (const PartCost& part : report.parts) {
    const double cost = part.kl_divergence.mean;
    highest = std::max(highest, cost);
    bars.push_back({part.layers.first + 0.1, part.layers.end() - 0.1, cost,
                    fmt::format("{}: {}", to_string(part.layers), with_error(part.kl_divergence))});
  }
  return fmt::format(
             "<h2>What each part costs alone</h2>\n<p class=\"soft\">KL divergence in the "
             "continuation if one group, layer or pair is converted and all other layers keep "
             "plain KV. These sum to {:.3g}; together they cost {:.3g}.</p>\n",
             sum_of(report.parts), report.continuation.kl_divergence.mean) +
         bar_chart(layer_axis(report.layers.size()), axis_from_zero(highest, "mean KL divergence"),
                   bars, {});
}

}  // namespace kvc
