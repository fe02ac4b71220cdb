#include "core/selective_reconstruction.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/parse_number.h"
#include "core/settings_text.h"

namespace kvc {
namespace {

constexpr std::int64_t kMostChunkTokens = std::int64_t{1} << 20;  // of a chunk

std::int64_t number(const TextSetting& setting, std::int64_t least, std::int64_t most) {
  std::int64_t value = 0;
  KVC_CHECK_USAGE(parse_number(setting.value, value) && value >= least && value <= most,
                  "--selective {}={}: expected {} to {}", setting.key, setting.value, least, most);
  return value;
}

}  // namespace

std::int64_t SelectiveReconstruction::new_outliers(std::int64_t latents, std::int64_t outliers,
                                                   std::int64_t count) const {
  const std::int64_t whole = (latents + count) / chunk_tokens - num_chunks(latents);
  return std::clamp<std::int64_t>(outlier_chunks - outliers, 0, std::max<std::int64_t>(0, whole));
}

SelectiveReconstruction parse_selective(const std::string& text) {
  constexpr std::int64_t kAll = SelectiveReconstruction::kAllChunks;
  SelectiveReconstruction selective;
  if (text.empty()) {
    return selective;
  }
  for (const TextSetting& setting :
       parse_settings("--selective", text, {"chunks", "outliers", "chunk"})) {
    if (setting.key == "chunks") {
      selective.chunks = setting.value == "all" ? kAll : number(setting, 1, kAll);
    } else if (setting.key == "outliers") {
      selective.outlier_chunks = number(setting, 0, kAll);
    } else {
      selective.chunk_tokens = number(setting, 1, kMostChunkTokens);
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
