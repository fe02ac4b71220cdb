// The datasets of a metric file (fisher/metric.h).
#pragma once

#include <cstdint>
#include <span>

#include "core/hdf5.h"

namespace kvc {

struct MetricTotals {
  std::int64_t num_tokens = 0, num_scored = 0;
  double loss_sum = 0;
};

void write_metric_totals(Hdf5Writer& file, const MetricTotals& totals);
MetricTotals read_metric_totals(const Hdf5Reader& file);
// `moment` [n, n] of the run of layers that begins with `first_layer`.
void write_metric(Hdf5Writer& file, int first_layer, std::span<const double> moment);

}  // namespace kvc
