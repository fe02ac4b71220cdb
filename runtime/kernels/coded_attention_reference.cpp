#include <algorithm>
#include <functional>
#include <vector>

#include "runtime/kernels/coded_attention.h"
#include "runtime/kernels/reference_rows.h"

namespace kvc {
namespace {

struct TokenCodes {
  std::vector<double> codes;
  double gain;
};

// The codes of tokens first .. last - 1 in tiles.
class RangeCodes {
 public:
  RangeCodes(const CodeTiles& tiles, std::int64_t first, std::int64_t last)
      : first_tile_(first / kTileTokens) {
    const std::int64_t count = tiles.layout.num_coefficients();
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(count * kTileTokens));
    for (std::int64_t tile = first_tile_; tile * kTileTokens < last; ++tile) {
      unpack_tile_reference(tiles.layout, tiles.tile(tile), codes.data());
      float gains[kTileTokens];
      tile_gains(tiles.layout, tiles.tile(tile), gains);
      for (std::int64_t token = 0; token < kTileTokens; ++token) {
        TokenCodes& of_token = tokens_.emplace_back(TokenCodes{{}, gains[token]});
        for (std::int64_t c = 0; c < count; ++c) {
          of_token.codes.push_back(codes[static_cast<std::size_t>(c * kTileTokens + token)]);
        }
      }
    }
  }
  const TokenCodes& operator[](std::int64_t token) const {
    return tokens_[static_cast<std::size_t>(token - first_tile_ * kTileTokens)];
  }

 private:
  std::int64_t first_tile_;
  std::vector<TokenCodes> tokens_;
};

}  // namespace

void coded_attention_partial_reference(const DecodeAttentionParams& params,
                                       const CodedSegment& segment, std::int64_t first,
                                       std::int64_t last, const AttentionPartial& partial) {
  const RangeCodes keys(segment.keys, first, last), values(segment.values, first, last);
  const auto key = [&](std::int64_t token, std::int64_t kv_head) {
    const TokenCodes& of_token = keys[token];
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
    if (token == 0 && segment.first_token.key_offset != nullptr) {
      std::transform(means.begin(), means.end(),
                     segment.first_token.key_offset + kv_head * params.head_dim, means.begin(),
                     std::plus());
    }
    return means;
  };
  const auto value = [&](std::int64_t token, std::int64_t) {
    const TokenCodes& of_token = values[token];
    ReferenceRow numbers;
    for (const double code : of_token.codes) {
      numbers.push_back(of_token.gain * code);
    }
    numbers.push_back(of_token.gain);
    return numbers;
  };
  reference_attention(params, key, value, first, last, partial);
  if (first == 0 && segment.first_token.key_offset != nullptr) {  // alone, it is the largest
    std::vector<float> sum(static_cast<std::size_t>(params.num_heads));
    std::vector<float> output(
        sum.size() * static_cast<std::size_t>(segment.values.layout.num_coefficients() + 1));
    reference_attention(params, key, value, 0, 1,
                        {.max = segment.first_token.score,
                         .sum = sum.data(),
                         .output = output.data(),
                         .scores = {}});
  }
}

}  // namespace kvc
