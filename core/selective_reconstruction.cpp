#include "core/selective_reconstruction.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "core/error.h"
#include "core/parse_number.h"

namespace kvc {
namespace {

constexpr std::int64_t kMostChunkTokens = std::int64_t{1} << 20;  // of a chunk

std::int64_t number(const std::string& setting, const std::string& text, std::int64_t least,
                    std::int64_t most) {
  std::int64_t value = 0;
  KVC_CHECK_USAGE(parse_number(text, value) && value >= least && value <= most,
                  "--selective {}: expected {} to {}", setting, least, most);
  return value;
}

}  // namespace

std::int64_t SelectiveReconstruction::new_outliers(std::int64_t latents, std::int64_t outliers,
                                                   std::int64_t count) const {
  const std::int64_t whole = (latents + count) / chunk_tokens - num_chunks(latents);
  return std::clamp<std::int64_t>(outlier_chunks - outliers, 0, std::max<std::int64_t>(0, whole));
}

SelectiveReconstruction parse_selective(const std::string& text) {
  SelectiveReconstruction selective;
  std::istringstream settings(text);
  for (std::string setting; std::getline(settings, setting, ',');) {
    const std::size_t equals = std::min(setting.find('='), setting.size());
    const std::string key = setting.substr(0, equals);
    const std::string value = setting.substr(std::min(equals + 1, setting.size()));
    if (key == "chunks") {
      selective.chunks = value == "all"
                             ? SelectiveReconstruction::kAllChunks
                             : number(setting, value, 1, SelectiveReconstruction::kAllChunks);
    } else if (key == "outliers") {
      selective.outlier_chunks = number(setting, value, 0, SelectiveReconstruction::kAllChunks);
    } else if (key == "chunk") {
      selective.chunk_tokens = number(setting, value, 1, kMostChunkTokens);
    } else {
      fail_usage("--selective {}: unknown setting '{}'; known: chunks, outliers, chunk", setting,
                 key);
    }
  }
  return selective;
}

std::string to_string(const SelectiveReconstruction& selective) {
  const bool all = selective.chunks == SelectiveReconstruction::kAllChunks;
  return fmt::format("chunks={},outliers={},chunk={}",
                     all ? "all" : std::to_string(selective.chunks), selective.outlier_chunks,
                     selective.chunk_tokens);
}

}  // namespace kvc
