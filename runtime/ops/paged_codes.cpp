#include "runtime/ops/paged_codes.h"

#include <algorithm>
#include <numeric>

#include "runtime/ops/head_rows.h"

namespace kvc {
namespace {

// Below as many products, another thread costs more than it saves; a run takes the time of some besides its own.
constexpr std::int64_t kStoreProductsPerThread = 1'000'000, kProductsOfRun = 20'000;

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

// Neighbouring tokens whose slots are in one tile: the first of each run, and the end of all.
std::vector<std::int64_t> runs_of(const std::int64_t* slots, std::int64_t count) {
  std::vector<std::int64_t> firsts;
  std::int64_t tile = -1;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t of_token = slots[i] < 0 ? -1 : slots[i] / kTileTokens;
    if (firsts.empty() || of_token != tile) {
      firsts.push_back(i);
      tile = of_token;
    }
  }
  firsts.push_back(count);
  return firsts;
}

}  // namespace

PagedCodes::PagedCodes(const Shape& shape, const std::vector<PagedBlock>& blocks)
    : shape_(shape), heads_(heads_of(blocks)) {
  for (const PagedBlock& block : blocks) {
    offsets_.push_back(tile_bytes_);
    tile_bytes_ += block.layout.bytes();
    blocks_.emplace_back(block);
  }
}

std::vector<PagedCodes::Heads> PagedCodes::heads_of(const std::vector<PagedBlock>& blocks) {
  std::vector<Heads> all;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    for (std::size_t j = 0; blocks[i].has_keys() && j < blocks.size(); ++j) {
      const std::int64_t in_values = blocks[i].first_head - blocks[j].first_head;
      if (blocks[j].has_values() && in_values >= 0 && in_values < blocks[j].num_heads &&
          blocks[i].parts == (i == j ? CodedParts::kBoth : CodedParts::kKeys)) {
        all.push_back({i, j, blocks[i].first_head, blocks[i].num_heads, in_values});
      }
    }
  }
  return all;
}

bool PagedCodes::is_complete(const std::vector<PagedBlock>& blocks, std::int64_t num_kv_heads) {
  std::vector<int> found(at(num_kv_heads));
  for (const Heads& heads : heads_of(blocks)) {
    for (std::int64_t head = heads.first; head < heads.first + heads.count; ++head) {
      ++found[at(head)];
    }
  }
  return std::all_of(found.begin(), found.end(), [](int count) { return count == 1; });
}

std::vector<const void*> PagedCodes::places(const PageMemory& pages,
                                            const std::int32_t* page_numbers, std::size_t block,
                                            std::int64_t first, std::int64_t last) const {
  const std::int64_t page_tokens = pages.page_tiles * kTileTokens;
  std::vector<const void*> places;
  for (std::int64_t page = first / page_tokens; page * page_tokens < last; ++page) {
    places.push_back(pages.data + page_numbers[page] * pages.stride +
                     offsets_[block] * pages.page_tiles);
  }
  return places;
}

void PagedCodes::store_run(const PageMemory& pages, const std::int64_t* slots,
                           const std::int64_t* positions, std::int64_t first, std::int64_t last,
                           std::size_t block, const std::vector<PagedRows>& layers) const {
  const CodedRows& rows = blocks_[block];
  const PagedBlock& spec = rows.spec();
  const std::int64_t count = last - first, n = spec.channels(), k = spec.layout.num_coefficients();
  std::vector<float> numbers(at(count * n)), z(at(count * k));
  for (std::int64_t i = 0; i < count; ++i) {
    float* to = numbers.data() + i * n;
    for (const PagedRows& layer : layers) {
      for (const HeadRows* part : {&layer.key, &layer.value}) {
        if (part == &layer.key ? !spec.has_keys() : !spec.has_values()) {
          continue;
        }
        for (std::int64_t head = 0; head < spec.num_heads; ++head, to += spec.head_dim) {
          load_row(*part, first + i, spec.first_head + head, spec.head_dim, to);
        }
      }
    }
  }
  rows.encode(shape_.rope, positions + first, count, numbers.data(), z.data());
  const std::int64_t tile = slots[first] / kTileTokens, page = tile / pages.page_tiles;
  std::uint8_t* to = pages.data + page * pages.stride + offsets_[block] * pages.page_tiles +
                     tile % pages.page_tiles * spec.layout.bytes();
  for (std::int64_t i = 0, next = 0; i < count; i = next) {
    const std::int64_t slot = slots[first + i];
    for (next = i + 1; next < count && slots[first + next] == slot + next - i;) {
      ++next;
    }
    encode_tokens(spec.layout, z.data() + i * k, rows.steps().data(), slot % kTileTokens, next - i,
                  to);
  }
}

void PagedCodes::store(const PageMemory& pages, const std::int64_t* slots,
                       const std::int64_t* positions, std::int64_t count,
                       const std::vector<PagedRows>& layers, const Parallel& parallel) const {
  const std::vector<std::int64_t> runs = runs_of(slots, count);
  const auto num_runs = static_cast<std::int64_t>(runs.size()) - 1;
  const auto num_blocks = static_cast<std::int64_t>(blocks_.size());
  std::int64_t products = 0;
  for (const CodedRows& rows : blocks_) {
    const PagedBlock& spec = rows.spec();
    products += spec.layout.num_coefficients() * spec.channels();
  }
  const std::int64_t mean_products =
      products * count / std::max<std::int64_t>(1, num_runs * num_blocks);
  const std::int64_t least = kStoreProductsPerThread / (kProductsOfRun + mean_products) + 1;
  parallel(num_runs * num_blocks, least, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::size_t run = at(i / num_blocks);
      if (slots[runs[run]] >= 0) {
        store_run(pages, slots, positions, runs[run], runs[run + 1], at(i % num_blocks), layers);
      }
    }
  });
}

void PagedCodes::read(const PageMemory& pages, const std::int32_t* page_numbers, std::int64_t first,
                      std::int64_t count, std::int64_t layer, const PagedRows& to,
                      const Parallel& parallel) const {
  const std::int64_t tiles = (count + kTileTokens - 1) / kTileTokens;
  const auto num_blocks = static_cast<std::int64_t>(blocks_.size());
  parallel(tiles * num_blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const CodedRows& rows = blocks_[at(i % num_blocks)];
      const PagedBlock& spec = rows.spec();
      const std::int64_t token = i / num_blocks * kTileTokens;
      const std::int64_t number = std::min(kTileTokens, count - token);
      const std::int64_t tile = (first + token) / kTileTokens;
      const auto* page = static_cast<const std::uint8_t*>(
          places(pages, page_numbers, at(i % num_blocks), first + token, first + token + 1)[0]);
      std::vector<float> z(at(kTileTokens * spec.layout.num_coefficients()));
      std::vector<float> numbers(at(number * spec.part_channels()));
      decode_tile(spec.layout, page + tile % pages.page_tiles * spec.layout.bytes(),
                  rows.steps().data(), z.data());
      const auto write = [&](const HeadRows& part) {
        for (std::int64_t row = 0; row < number; ++row) {
          for (std::int64_t head = 0; head < spec.num_heads; ++head) {
            store_row(part, token + row, spec.first_head + head, spec.head_dim,
                      numbers.data() + (row * spec.num_heads + head) * spec.head_dim);
          }
        }
      };
      std::int64_t positions[kTileTokens];
      std::iota(positions, positions + number, first + token);
      if (spec.has_keys()) {
        rows.decode_keys(shape_.rope, layer, positions, number, z.data(), numbers.data());
        write(to.key);
      }
      if (spec.has_values()) {
        rows.decode_values(layer, positions, number, z.data(), numbers.data());
        write(to.value);
      }
    }
  });
}

}  // namespace kvc
