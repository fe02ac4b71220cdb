#include "fisher/metric_file.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/hash.h"
#include "core/output.h"
#include "fisher/metric.h"

namespace kvc {

void write_metric(Hdf5Writer& file, int first_layer, std::span<const double> moment) {
  const auto width = static_cast<std::int64_t>(std::sqrt(static_cast<double>(moment.size())) + 0.5);
  file.dataset(fmt::format("/metric/{}/second_moment", first_layer), moment, {width, width},
               {"stacked channel", "stacked channel"});
}

void write_metric_totals(Hdf5Writer& file, const MetricTotals& totals) {
  file.dataset("/num_tokens", std::vector<std::int64_t>{totals.num_tokens}, {1});
  file.dataset("/num_scored", std::vector<std::int64_t>{totals.num_scored}, {1});
  file.dataset("/loss_sum", std::vector<double>{totals.loss_sum}, {1});
}

MetricTotals read_metric_totals(const Hdf5Reader& file) {
  return {file.ints("/num_tokens", {1}).front(), file.ints("/num_scored", {1}).front(),
          file.doubles("/loss_sum", {1}).front()};
}

void add_metrics(const std::vector<std::filesystem::path>& files, const std::filesystem::path& out,
                 bool force) {
  KVC_CHECK_USAGE(files.size() >= 2, "--add requires at least two metric files");
  std::vector<std::unique_ptr<Hdf5Reader>> readers;
  Provenance provenance;
  Json added = Json::array();
  MetricTotals totals;
  for (const std::filesystem::path& path : files) {
    readers.push_back(std::make_unique<Hdf5Reader>(path));
    const Provenance found = read_provenance(*readers.back());
    provenance = readers.size() == 1 ? found : provenance;
    check_provenance(found, "metric", provenance.checkpoint_hash, path);
    for (const char* option : {"joint_layers", "sink_tokens"}) {
      KVC_CHECK(found.options.value(option, Json()) == provenance.options.value(option, Json()),
                "{}: made with another {} than {}; only files made with the same options add up",
                path.string(), option, files.front().string());
    }
    const MetricTotals part = read_metric_totals(*readers.back());
    totals.num_tokens += part.num_tokens;
    totals.num_scored += part.num_scored;
    totals.loss_sum += part.loss_sum;
    added.push_back(found.tokens_hash);
  }
  provenance.tokens_hash = sha256_hex(added.dump());
  provenance.options["added"] = added;
  OutputFile output(out, force);
  Hdf5Writer file(output.path());
  write_provenance(file, provenance);
  for (const std::string& run : readers.front()->children("/metric")) {
    const std::string path = "/metric/" + run + "/second_moment";
    const std::vector<std::int64_t> shape = readers.front()->shape(path);
    std::vector<double> sum = readers.front()->doubles(path, shape);
    for (std::size_t i = 1; i < readers.size(); ++i) {
      const std::vector<double> part = readers[i]->doubles(path, shape);
      std::transform(sum.begin(), sum.end(), part.begin(), sum.begin(), std::plus<>());
    }
    write_metric(file, std::stoi(run), sum);
  }
  write_metric_totals(file, totals);
  file.close();
  output.commit();
}

Json metric_summary(const std::filesystem::path& path) {
  const MetricTotals totals = read_metric_totals(Hdf5Reader(path));
  return {{"num_tokens", totals.num_tokens},
          {"num_scored", totals.num_scored},
          {"mean_nll", totals.loss_sum / static_cast<double>(totals.num_scored)}};
}

}  // namespace kvc
