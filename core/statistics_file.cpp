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

}  // namespace kvc
