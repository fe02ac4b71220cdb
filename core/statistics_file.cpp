#include "core/statistics_file.h"

#include <fmt/format.h>

#include "core/error.h"
#include "core/provenance.h"

namespace kvc {
namespace {

std::int64_t positive_count(const Hdf5Reader& file, const std::string& path) {
  const std::int64_t count = file.ints(path, {1}).front();
  KVC_CHECK(count > 0, "{}:{}: {} is no count of a finished run", file.path().string(), path,
            count);
  return count;
}

}  // namespace

FisherInformation read_fisher(const std::filesystem::path& file, const std::string& checkpoint_hash,
                              int num_layers, std::int64_t kv_dim) {
  const Hdf5Reader reader(file);
  check_provenance(read_provenance(reader), "fisher", checkpoint_hash, file);
  const double num_sequences = static_cast<double>(positive_count(reader, "/num_sequences"));
  FisherInformation fisher;
  fisher.channel = reader.doubles("/channel_sum", {num_layers, 2, kv_dim});
  fisher.score.assign(static_cast<std::size_t>(num_layers), 0.0);
  for (std::size_t i = 0; i < fisher.channel.size(); ++i) {
    fisher.channel[i] /= num_sequences;
    fisher.score[i / static_cast<std::size_t>(2 * kv_dim)] += fisher.channel[i];
  }
  return fisher;
}

GramSum read_gram(const std::filesystem::path& calibration, const std::string& checkpoint_hash,
                  int layer, std::int64_t hidden_size) {
  const Hdf5Reader reader(calibration);
  check_provenance(read_provenance(reader), "calibration", checkpoint_hash, calibration);
  return {reader.doubles(fmt::format("/layers/{}/gram", layer), {hidden_size, hidden_size}),
          positive_count(reader, "/num_tokens")};
}

JointSum read_joint_sum(const std::filesystem::path& covariance, const std::string& checkpoint_hash,
                        int first_layer, std::int64_t width) {
  const Hdf5Reader reader(covariance);
  check_provenance(read_provenance(reader), "covariance", checkpoint_hash, covariance);
  const std::string group = fmt::format("/joint/{}/", first_layer);
  return {reader.doubles(group + "sum", {width}),
          reader.doubles(group + "second_moment", {width, width}),
          positive_count(reader, "/num_tokens")};
}

MetricSum read_gradient_metric(const std::filesystem::path& metric,
                               const std::string& checkpoint_hash, int first_layer,
                               std::int64_t width) {
  const Hdf5Reader reader(metric);
  check_provenance(read_provenance(reader), "metric", checkpoint_hash, metric);
  return {reader.doubles(fmt::format("/metric/{}/second_moment", first_layer), {width, width}),
          positive_count(reader, "/num_tokens")};
}

MetricSum read_attention_metric(const std::filesystem::path& covariance,
                                const std::string& checkpoint_hash, int layer,
                                std::int64_t num_kv_heads, std::int64_t head_dim) {
  const Hdf5Reader reader(covariance);
  check_provenance(read_provenance(reader), "covariance", checkpoint_hash, covariance);
  const std::string group = fmt::format("/attention/{}/", layer);
  const std::vector<std::int64_t> shape = {num_kv_heads, head_dim, head_dim};
  MetricSum sum{reader.doubles(group + "key_metric", shape), positive_count(reader, "/num_tokens")};
  const std::vector<double> values = reader.doubles(group + "value_metric", shape);
  sum.values.insert(sum.values.end(), values.begin(), values.end());
  return sum;
}

AttentionReach read_attention_reach(const std::filesystem::path& covariance,
                                    const std::string& checkpoint_hash, int layer,
                                    std::int64_t num_heads, std::int64_t num_kv_heads,
                                    std::int64_t head_dim) {
  const Hdf5Reader reader(covariance);
  check_provenance(read_provenance(reader), "covariance", checkpoint_hash, covariance);
  const std::string group = fmt::format("/attention/{}/", layer);
  const std::vector<std::int64_t> shape = {num_kv_heads, head_dim, head_dim};
  return {reader.doubles(group + "query_metric", shape),
          reader.doubles(group + "value_metric", shape),
          reader.doubles(group + "distance_weight", {num_heads, kNumDistances}),
          positive_count(reader, "/num_tokens")};
}

}  // namespace kvc
