// Selective reconstruction: a step of generation rebuilds only those chunks of neighbouring latents that its
// query is likely to attend to (xKV, arXiv 2503.18893v2; the choice is ShadowKV's, 2410.21465). Every layer
// and KV head has a landmark per chunk: the mean of its post-RoPE keys. A setting of a run, not of a
// checkpoint.
#pragma once

#include <cstdint>
#include <string>

namespace kvc {

struct SelectiveReconstruction {
  static constexpr std::int64_t kAllChunks = std::int64_t{1} << 30;

  std::int64_t chunks = 256;  // that a step rebuilds, per layer and KV head
  // Chunks per layer and KV head with a key unlike their landmark: they stay exact beside their latents,
  // and every step attends to them.
  std::int64_t outlier_chunks = 48;
  std::int64_t chunk_tokens = 8;

  // Chunks of `latents` tokens; the last may be short.
  std::int64_t num_chunks(std::int64_t latents) const {
    return (latents + chunk_tokens - 1) / chunk_tokens;
  }
  // New outliers when `count` tokens follow `latents` others, which have `outliers` already: taken from the
  // chunks that begin and end among the new tokens, until there are outlier_chunks.
  std::int64_t new_outliers(std::int64_t latents, std::int64_t outliers, std::int64_t count) const;
};

// "key=value,..." with chunks (a number, or all), outliers and chunk. Anything else: UsageError that
// lists the known keys.
SelectiveReconstruction parse_selective(const std::string& text);
// Every setting; parse_selective reads it back.
std::string to_string(const SelectiveReconstruction& selective);

}  // namespace kvc
