#include "tests/bench/coded_cases.h"

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "runtime/kernels/coded_attention.h"
#include "tests/bench/huge_memory.h"

namespace kvc {
namespace {

// Keys and values, a quarter of the bits of bfloat16, and half of it, of keys or of values.
TileLayout quarter_layout(std::int64_t head_dim) {
  if (head_dim == 32) {
    return {.coefficients = {0, 5, 6, 9, 7, 10, 8, 4, 7}, .gain = false};
  }
  return {.coefficients = {0, 12, 12, 24, 56, 52, 40, 16, 10}, .gain = false};
}
TileLayout half_layout(std::int64_t head_dim) {
  switch (head_dim) {
    case 32:
      return {.coefficients = {0, 2, 5, 6, 7, 6, 3, 2, 1}, .gain = false};
    case 64:
      return {.coefficients = {0, 4, 9, 13, 15, 11, 6, 4, 2}, .gain = false};
    default:
      return {.coefficients = {0, 6, 18, 24, 36, 24, 10, 6, 4}, .gain = false};
  }
}

// Random codes of every KV head.
struct Codes {
  Codes(const TileLayout& of, std::int64_t tokens)
      : layout(of),
        tiles(tokens / kTileTokens),
        bytes(kCaseKvHeads * tiles * layout.bytes()),
        memory(huge_memory(static_cast<std::size_t>(bytes), 0)) {
    std::mt19937 random(1);
    std::generate_n(memory.get(), bytes, [&] { return static_cast<std::uint8_t>(random()); });
    for (std::int64_t head = 0; head < kCaseKvHeads; ++head) {
      blocks.push_back(memory.get() + head * tiles * layout.bytes());
    }
  }
  CodeTiles of_head(std::int64_t head) const { return {&blocks[at(head)], tiles, tiles, layout}; }
  static std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

  TileLayout layout;
  std::int64_t tiles, bytes;
  std::shared_ptr<std::uint8_t> memory;
  std::vector<const void*> blocks;
};

// A decoder whose coefficients are dealt out to the bases, or channels, in turn.
CodedKeyRows random_rows(const TileLayout& layout, std::int64_t head_dim, const KeyBases& form) {
  const std::int64_t k = layout.num_coefficients();
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<std::int32_t> channels;  // pair by pair
  for (std::int32_t pair = 0; pair < head_dim / 2; ++pair) {
    channels.insert(channels.end(), {pair, pair + static_cast<std::int32_t>(head_dim / 2)});
  }
  const std::int64_t count = form.rotated ? head_dim : form.count;
  std::vector<float> decoder(static_cast<std::size_t>(head_dim * k), 0.0f);
  for (std::int64_t i = 0; i < head_dim; ++i) {
    for (std::int64_t c = 0; c < k; ++c) {
      const bool has = c * 37 % count == i / (head_dim / count);
      decoder[static_cast<std::size_t>(channels[static_cast<std::size_t>(i)] * k + c)] =
          has ? 0.01f * normal(random) : 0;
    }
  }
  const std::vector<float> ones(static_cast<std::size_t>(k), 1.0f);
  std::vector<float> mean(static_cast<std::size_t>(head_dim), 1.0f);
  for (std::int64_t pair = 0; form.rotated && pair < head_dim / 2; ++pair) {
    const bool has = pair % 8 != 7;  // most have one, as in conversions of trained models
    mean[static_cast<std::size_t>(pair)] = mean[static_cast<std::size_t>(pair + head_dim / 2)] =
        has;
  }
  KeyBases bases = form;
  bases.channels = form.count > 1 ? channels.data() : nullptr;
  return CodedKeyRows(layout, decoder.data(), k, head_dim, ones.data(), mean.data(), bases);
}

// Values in tiles of their own unless null.
Case coded_case(const std::string& name, std::int64_t head_dim, std::shared_ptr<Codes> keys,
                std::shared_ptr<Codes> values, const KeyBases& form) {
  const std::int64_t tokens = keys->tiles * kTileTokens;
  auto query = std::make_shared<std::vector<float>>(kCaseHeads * head_dim, 0.125f);
  auto angles = std::make_shared<Angles>(tokens, head_dim / 2);
  auto rows = std::make_shared<CodedKeyRows>(random_rows(keys->layout, head_dim, form));
  const std::int64_t bytes = keys->bytes + (values == nullptr ? 0 : values->bytes);
  const auto run = [=](int thread, int threads) {
    const std::int64_t heads = kCaseHeads / kCaseKvHeads;
    const Codes& of_values = values == nullptr ? *keys : *values;
    Outputs outputs(of_values.layout.num_coefficients() + 1);
    for (std::int64_t head = kCaseKvHeads * thread / threads;
         head < kCaseKvHeads * (thread + 1) / threads; ++head) {
      DecodeAttentionParams params{.query = query->data() + head * heads * head_dim,
                                   .num_heads = heads,
                                   .num_kv_heads = 1,
                                   .head_dim = head_dim};
      params.scale = 0.01f;
      params.raw_keys.rope = {angles->cos.data(), angles->sin.data(), head_dim / 2, false};
      const CodedSegment segment{
          .keys = keys->of_head(head), .values = of_values.of_head(head), .rows = rows.get()};
      coded_attention_partial(params, segment, 0, tokens, outputs.partial);
    }
  };
  return {name, bytes, run, tokens, "bfloat16 " + std::to_string(head_dim)};
}

}  // namespace

void add_coded_cases(std::int64_t tokens, std::int64_t head_dim, std::vector<Case>& cases) {
  const auto named = [&](const char* form) {
    std::string name = form;
    name.replace(name.find('%'), 1, std::to_string(head_dim));
    return name;
  };
  if (head_dim != 64) {
    cases.push_back(coded_case(named("coded %, a quarter"), head_dim,
                               std::make_shared<Codes>(quarter_layout(head_dim), tokens), nullptr,
                               {}));
  }
  const TileLayout half = half_layout(head_dim);
  const auto codes = std::make_shared<Codes>(half, tokens);
  const auto values = std::make_shared<Codes>(half, tokens);
  const std::pair<const char*, KeyBases> forms[] = {{"coded rotated %", {.rotated = true}},
                                                    {"coded pairs %", {.count = head_dim / 2}},
                                                    {"coded blocks:4 %", {.count = 4}},
                                                    {"coded keys %", {}}};
  for (const auto& [form, bases] : forms) {
    cases.push_back(coded_case(named(form), head_dim, codes, values, bases));
  }
  TileLayout with_gains = half;
  with_gains.gain = true;
  cases.push_back(coded_case(named("coded rotated %, with gains"), head_dim,
                             std::make_shared<Codes>(with_gains, tokens),
                             std::make_shared<Codes>(with_gains, tokens), {.rotated = true}));
}

}  // namespace kvc
