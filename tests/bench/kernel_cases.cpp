#include "tests/bench/kernel_cases.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <random>

#include "runtime/kernels/coded_attention.h"
#include "runtime/kernels/decode_attention.h"
#include "runtime/kernels/fused_attention.h"
#include "runtime/kernels/rank_space_attention.h"
#include "tests/bench/huge_memory.h"
#include "tests/bench/read_stream.h"

namespace kvc {
namespace {

constexpr std::int64_t kHeads = 32, kKvHeads = 8, kBlockRows = 64;

// Rows of one byte value: speed does not depend on the numbers as long as none is subnormal.
struct Rows {
  Rows(std::int64_t num_rows, std::int64_t head_dim, KvElement element, KvScales scales) {
    const std::int64_t bytes =
        kv_rows_bytes(kBlockRows, kKvHeads * head_dim, head_dim, element, scales);
    const std::int64_t count = (num_rows + kBlockRows - 1) / kBlockRows;
    memory = huge_memory(static_cast<std::size_t>(bytes * count),
                         0x3C);  // 1.06 as float16, 0.011 otherwise
    for (std::int64_t block = 0; block < count; ++block) {
      blocks.push_back(memory.get() + block * bytes);
    }
    rows = {blocks.data(), kBlockRows, num_rows, element, scales};
    total = bytes * count;
  }
  std::shared_ptr<std::uint8_t> memory;
  std::vector<const void*> blocks;
  KvRows rows;
  std::int64_t total;
};

struct Angles {
  Angles(std::int64_t positions, std::int64_t pairs)
      : cos(static_cast<std::size_t>(positions * pairs)), sin(cos.size()) {
    for (std::int64_t i = 0; i < positions * pairs; ++i) {
      const double turn =
          static_cast<double>(i / pairs) *
          std::pow(1e4, -static_cast<double>(i % pairs) / static_cast<double>(pairs));
      cos[static_cast<std::size_t>(i)] = static_cast<float>(std::cos(turn));
      sin[static_cast<std::size_t>(i)] = static_cast<float>(std::sin(turn));
    }
  }
  std::vector<float> cos, sin;
};

struct Outputs {
  explicit Outputs(std::int64_t width)
      : memory(static_cast<std::size_t>(kHeads * (width + 2))),
        partial{memory.data(), memory.data() + kHeads, memory.data() + 2 * kHeads} {}
  std::vector<float> memory;
  AttentionPartial partial;
};

Case attention_case(const char* name, std::int64_t tokens, std::int64_t head_dim, KvElement element,
                    bool raw) {
  auto key = std::make_shared<Rows>(tokens, head_dim, element, KvScales::kPerChannel);
  auto value = std::make_shared<Rows>(tokens, head_dim, element, KvScales::kPerRow);
  auto query = std::make_shared<std::vector<float>>(kHeads * head_dim, 0.125f);
  auto angles = std::make_shared<Angles>(raw ? tokens : 0, head_dim / 2);
  const auto run = [=](int thread, int threads) {
    DecodeAttentionParams params{.query = query->data(),
                                 .num_heads = kHeads,
                                 .num_kv_heads = kKvHeads,
                                 .head_dim = head_dim};
    params.scale = 0.01f;
    params.raw_keys.rope = {angles->cos.data(), angles->sin.data(), head_dim / 2, false};
    const KvSegment segment{.key = key->rows, .value = value->rows, .raw_key = raw};
    Outputs outputs(head_dim);
    decode_attention_partial(params, segment, tokens * thread / threads,
                             tokens * (thread + 1) / threads, outputs.partial);
  };
  return {name, key->total + value->total, run, tokens, "bfloat16 " + std::to_string(head_dim)};
}

// A layer fused of two others of `tokens` rows each, with weights of ones, and, unless `alone`, a plain one.
Case fused_case(const char* name, std::int64_t tokens, std::int64_t head_dim, bool alone) {
  const auto rows = [&] {
    return std::make_shared<Rows>(tokens, head_dim, KvElement::kBFloat16, KvScales::kPerRow);
  };
  const std::shared_ptr<Rows> stored[] = {rows(), rows(), rows(), rows(), rows(), rows()};
  const std::vector<std::shared_ptr<Rows>> all(std::begin(stored), std::end(stored));
  auto query = std::make_shared<std::vector<float>>(kHeads * head_dim, 0.125f);
  const auto run = [=](int thread, int threads) {
    const DecodeAttentionParams params{.query = query->data(),
                                       .num_heads = kHeads,
                                       .num_kv_heads = kKvHeads,
                                       .head_dim = head_dim,
                                       .scale = 0.01f};
    FusedSegment segment;
    segment.first = {.key = all[0]->rows, .value = all[1]->rows};
    segment.second = {.key = all[2]->rows, .value = all[3]->rows};
    Outputs outputs(head_dim);
    const std::int64_t first = tokens * thread / threads, last = tokens * (thread + 1) / threads;
    if (!alone) {
      decode_attention_partial(params, {.key = all[4]->rows, .value = all[5]->rows}, first, last,
                               outputs.partial);
    }
    fused_attention_partial(params, segment, first, last, outputs.partial);
  };
  return {name, (alone ? 4 : 6) * all[0]->total, run, (alone ? 1 : 2) * tokens, "bfloat16 128"};
}

// Latents of rank 512 and keys that were just rebuilt, a tile at a time; bytes are those of the latents.
Case rank_space_case(std::int64_t tokens, KvElement element, const char* name) {
  constexpr std::int64_t kRank = 512, kTile = 128, kHeadDim = 128;
  auto latents = std::make_shared<Rows>(tokens, kRank / kKvHeads, element, KvScales::kPerRow);
  auto key = std::make_shared<Rows>(2 * kTile, kHeadDim, KvElement::kBFloat16, KvScales::kPerRow);
  auto query = std::make_shared<std::vector<float>>(kHeads * kHeadDim, 0.125f);
  auto angles = std::make_shared<Angles>(tokens, kHeadDim / 2);
  const auto run = [=](int thread, int threads) {
    DecodeAttentionParams params{.query = query->data(),
                                 .num_heads = kHeads,
                                 .num_kv_heads = kKvHeads,
                                 .head_dim = kHeadDim};
    params.scale = 0.01f;
    params.raw_keys.rope = {angles->cos.data(), angles->sin.data(), kHeadDim / 2, false};
    Outputs outputs(kRank);
    const std::int64_t last = tokens * (thread + 1) / threads;
    for (std::int64_t row = tokens * thread / threads; row < last; row += kTile) {
      RankSpaceSegment segment;
      segment.keys = {.key = key->rows, .first_position = row, .raw_key = true};
      segment.latents = latents->rows;
      segment.first_latent = row;
      segment.width = segment.rank = kRank;
      add_rank_space_attention(params, segment, 0, std::min(kTile, last - row), outputs.partial);
    }
  };
  return {name, latents->total, run};
}

// Codes of one KV head each, a quarter of the bits of bfloat16 keys and values.
TileLayout quarter_layout(std::int64_t head_dim) {
  if (head_dim == 32) {
    return {.coefficients = {0, 5, 6, 9, 7, 10, 8, 4, 7}, .gain = false};
  }
  return {.coefficients = {0, 12, 12, 24, 56, 52, 40, 16, 10}, .gain = false};
}

Case coded_case(std::int64_t tokens, std::int64_t head_dim, const char* name) {
  const TileLayout layout = quarter_layout(head_dim);
  const std::int64_t k = layout.num_coefficients(), tiles = tokens / kTileTokens;
  const std::int64_t bytes = kKvHeads * tiles * layout.bytes();
  const std::shared_ptr<std::uint8_t> codes = huge_memory(static_cast<std::size_t>(bytes), 0);
  std::mt19937 random(1);
  std::generate_n(codes.get(), bytes, [&] { return static_cast<std::uint8_t>(random()); });
  auto query = std::make_shared<std::vector<float>>(kHeads * head_dim, 0.125f);
  auto angles = std::make_shared<Angles>(tokens, head_dim / 2);
  std::normal_distribution<float> normal;
  std::vector<float> decoder(static_cast<std::size_t>(head_dim * k));
  std::generate(decoder.begin(), decoder.end(), [&] { return 0.01f * normal(random); });
  const std::vector<float> ones(decoder.size(), 1.0f);
  auto keys =
      std::make_shared<CodedKeyRows>(layout, decoder.data(), k, head_dim, ones.data(), ones.data());
  const auto run = [=](int thread, int threads) {
    const std::int64_t heads = kHeads / kKvHeads;
    Outputs outputs(k + 1);
    for (std::int64_t head = kKvHeads * thread / threads; head < kKvHeads * (thread + 1) / threads;
         ++head) {
      DecodeAttentionParams params{.query = query->data() + head * heads * head_dim,
                                   .num_heads = heads,
                                   .num_kv_heads = 1,
                                   .head_dim = head_dim};
      params.scale = 0.01f;
      params.raw_keys.rope = {angles->cos.data(), angles->sin.data(), head_dim / 2, false};
      const void* block = codes.get() + head * tiles * layout.bytes();
      const CodeTiles all{&block, tiles, tiles, layout};
      const CodedSegment segment{.keys = all, .values = all, .rows = keys.get()};
      coded_attention_partial(params, segment, 0, tiles * kTileTokens, outputs.partial);
    }
  };
  return {name, bytes, run, tiles * kTileTokens, "bfloat16 " + std::to_string(head_dim)};
}

}  // namespace

std::vector<Case> make_cases(std::int64_t tokens) {
  std::vector<Case> cases;
  constexpr std::size_t kReadBytes = std::size_t{256} << 20;
  const std::shared_ptr<std::uint8_t> buffer = huge_memory(kReadBytes, 1);
  cases.push_back({"read", kReadBytes, [=](int thread, int threads) {
                     const std::size_t piece = kReadBytes / static_cast<std::size_t>(threads);
                     read_stream(buffer.get() + piece * static_cast<std::size_t>(thread), piece);
                   }});
  cases.push_back(attention_case("bfloat16 128", tokens, 128, KvElement::kBFloat16, false));
  cases.push_back(attention_case("bfloat16 64", tokens * 2, 64, KvElement::kBFloat16, false));
  cases.push_back(attention_case("float16 128", tokens, 128, KvElement::kFloat16, false));
  cases.push_back(attention_case("float32 128", tokens, 128, KvElement::kFloat32, false));
  cases.push_back(attention_case("bfloat16 128 raw", tokens, 128, KvElement::kBFloat16, true));
  cases.push_back(coded_case(tokens, 128, "coded 128, a quarter"));
  cases.push_back(attention_case("bfloat16 32", tokens, 32, KvElement::kBFloat16, false));
  cases.push_back(coded_case(tokens, 32, "coded 32, a quarter"));
  cases.push_back(fused_case("bfloat16 128 fused", tokens / 2, 128, true));
  cases.push_back(fused_case("bfloat16 128 half fused", tokens / 2, 128, false));
  cases.push_back(rank_space_case(tokens * 2, KvElement::kBFloat16, "bfloat16 latents 512"));
  cases.push_back(rank_space_case(tokens * 4, KvElement::kInt8, "int8 latents 512"));
  cases.push_back(attention_case("int8 128 raw", tokens * 2, 128, KvElement::kInt8, true));
  cases.push_back(attention_case("int4 128 raw", tokens * 4, 128, KvElement::kInt4, true));
  cases.push_back(attention_case("int2 128 raw", tokens * 8, 128, KvElement::kInt2, true));
  return cases;
}

}  // namespace kvc
