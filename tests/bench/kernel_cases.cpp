#include "tests/bench/kernel_cases.h"

#include <algorithm>
#include <iterator>
#include <memory>

#include "runtime/kernels/decode_attention.h"
#include "runtime/kernels/fused_attention.h"
#include "runtime/kernels/rank_space_attention.h"
#include "tests/bench/coded_cases.h"
#include "tests/bench/huge_memory.h"
#include "tests/bench/read_stream.h"

namespace kvc {
namespace {

constexpr std::int64_t kHeads = kCaseHeads, kKvHeads = kCaseKvHeads, kBlockRows = 64;

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
  add_coded_cases(tokens * 2, 64, cases);
  cases.push_back(attention_case("float16 128", tokens, 128, KvElement::kFloat16, false));
  cases.push_back(attention_case("float32 128", tokens, 128, KvElement::kFloat32, false));
  cases.push_back(attention_case("bfloat16 128 raw", tokens, 128, KvElement::kBFloat16, true));
  add_coded_cases(tokens, 128, cases);
  cases.push_back(attention_case("bfloat16 32", tokens, 32, KvElement::kBFloat16, false));
  add_coded_cases(tokens, 32, cases);
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
