#include <algorithm>
#include <functional>
#include <vector>

#include "runtime/kernels/coded_attention.h"
#include "runtime/kernels/reference_rows.h"

namespace kvc {
namespace {

// Codes and gain of one token.
struct TokenCodes {
  TokenCodes(const CodeTiles& tiles, std::int64_t token) {
    const std::int64_t count = tiles.layout.num_coefficients(), in_tile = token % kTileTokens;
    std::vector<std::uint8_t> all(static_cast<std::size_t>(count * kTileTokens));
    const std::uint8_t* tile = tiles.tile(token / kTileTokens);
    unpack_tile_reference(tiles.layout, tile, all.data());
    for (std::int64_t c = 0; c < count; ++c) {
      codes.push_back(all[static_cast<std::size_t>(c * kTileTokens + in_tile)]);
    }
    float gains[kTileTokens];
    tile_gains(tiles.layout, tile, gains);
    gain = gains[in_tile];
  }
  std::vector<double> codes;
  double gain;
};

}  // namespace

void coded_attention_partial_reference(const DecodeAttentionParams& params,
                                       const CodedSegment& segment, std::int64_t first,
                                       std::int64_t last, const AttentionPartial& partial) {
  const auto key = [&](std::int64_t token, std::int64_t kv_head) {
    const TokenCodes of_token(segment.keys, token);
    const CodedKeyRows& rows = segment.rows[kv_head];
    ReferenceRow channels, means;
    for (std::int64_t d = 0; d < params.head_dim; ++d) {
      double sum = 0;
      for (std::size_t c = 0; c < of_token.codes.size(); ++c) {
        sum += rows.weight(d, static_cast<std::int64_t>(c)) * of_token.codes[c];
      }
      channels.push_back(of_token.gain * (sum + rows.offset(d)));
      means.push_back(rows.mean(d));
    }
    if (rows.form() != KeyForm::kRotated) {
      std::transform(channels.begin(), channels.end(), means.begin(), means.begin(), std::plus());
      channels.assign(channels.size(), 0);
    }
    rotate_reference(params.raw_keys.rope, segment.position(token), means);
    std::transform(channels.begin(), channels.end(), means.begin(), means.begin(), std::plus());
    return means;
  };
  const auto value = [&](std::int64_t token, std::int64_t) {
    const TokenCodes of_token(segment.values, token);
    ReferenceRow numbers;
    for (const double code : of_token.codes) {
      numbers.push_back(of_token.gain * code);
    }
    numbers.push_back(of_token.gain);
    return numbers;
  };
  reference_attention(params, key, value, first, last, partial);
}

}  // namespace kvc
