#include <optional>

#include "core/error.h"
#include "core/hash.h"
#include "core/output.h"
#include "fisher/fisher.h"
#include "fisher/fisher_file.h"

namespace kvc {

void add_fishers(const std::vector<std::filesystem::path>& files, const std::filesystem::path& out,
                 bool force) {
  KVC_CHECK_USAGE(files.size() >= 2, "--add requires at least two Fisher files");
  std::optional<FisherSums> total;
  Provenance provenance;
  Json added = Json::array();
  for (const std::filesystem::path& path : files) {
    const Hdf5Reader file(path);
    const Provenance found = read_provenance(file);
    check_provenance(found, "fisher", total ? provenance.checkpoint_hash : found.checkpoint_hash,
                     path);
    FisherSums sums = read_fisher_sums(file);
    if (total) {
      KVC_CHECK(
          sums.channel_sum.size() == total->channel_sum.size() && sums.kv_dim == total->kv_dim,
          "{}: other shapes than {}", path.string(), files.front().string());
      *total += sums;
    } else {
      total = std::move(sums);
      provenance = found;
    }
    added.push_back(found.tokens_hash);
  }
  provenance.tokens_hash = sha256_hex(added.dump());
  provenance.options["added"] = added;
  OutputFile output(out, force);
  Hdf5Writer file(output.path());
  write_provenance(file, provenance);
  total->write(file);
  file.close();
  output.commit();
}

Json fisher_summary(const std::filesystem::path& fisher) {
  const Hdf5Reader file(fisher);
  const FisherSums sums = read_fisher_sums(file);
  const auto num_sequences = static_cast<double>(sums.num_sequences);
  std::vector<double> score(sums.channel_sum.size() / static_cast<std::size_t>(2 * sums.kv_dim));
  for (std::size_t i = 0; i < sums.channel_sum.size(); ++i) {
    score[i / static_cast<std::size_t>(2 * sums.kv_dim)] += sums.channel_sum[i] / num_sequences;
  }
  return {{"num_sequences", sums.num_sequences},
          {"num_tokens", sums.num_tokens},
          {"mean_nll", sums.loss_sum / num_sequences},
          {"score", score}};
}

}  // namespace kvc
