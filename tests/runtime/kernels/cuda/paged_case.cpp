#include "tests/runtime/kernels/cuda/paged_case.h"

#include <algorithm>

#include "runtime/kernels/cuda/device_layout.h"
#include "tests/runtime/kernels/cuda/case_tiles.h"

namespace kvc::testing {
namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

}  // namespace

PagedCase::PagedCase(KernelBackend& backend, DeviceElement of_numbers)
    : element(of_numbers),
      rows(narrowed(case_numbers(std::int64_t{kTokens} * 2 * kHeads * kDim, 1), of_numbers)),
      angles_(backend, kPageTokens * 2, kPairs, false) {
  add_block(true, false, 0, 1, true);
  add_block(true, true, 1, 1, false);
  add_block(false, false, 0, 2, true);
  std::vector<DeviceBlock> described;
  for (const CaseBlock& block : blocks) {
    described.push_back(block.device);
  }
  const std::int64_t place = image_.add(described);
  of.image = backend.upload(image_.bytes());
  of.blocks = reinterpret_cast<const DeviceBlock*>(of.image + place);
  of.num_blocks = 3;
  of.num_kv_heads = kHeads;
  of.head_dim = kDim;
  of.rope = angles_.device;
  const std::int64_t stride = tile_bytes_ * kPageTiles + 16;
  pages = {backend.unwritten<std::uint8_t>(at(stride * kPages)), stride, kPages, kPageTiles};
}

void PagedCase::add_block(bool keys, bool rotated, int first_head, int num_heads, bool gain) {
  CaseBlock& block = blocks.emplace_back();
  const auto seed = static_cast<unsigned>(10 * blocks.size());
  block.layout = case_layout(gain);
  const auto k = block.layout.num_coefficients(), n = std::int64_t{num_heads} * kDim;
  DeviceBlock& device = block.device;
  device.tiles = device_layout(block.layout);
  device.page_offset = tile_bytes_;
  device.num_heads = num_heads;
  device.first_head = first_head;
  device.has_keys = keys;
  device.has_values = !keys;
  device.rotated = rotated;
  device.channels = static_cast<int>(n);
  device.first_coefficient = of.num_coefficients;
  block.encoder = case_numbers(n * k, seed);
  block.decoder = case_numbers(n * k, seed + 1);
  block.mean = case_numbers(n, seed + 2);
  block.steps = case_steps(k, seed + 4);
  device.encoder = image_.add(block.encoder);
  device.decoder = image_.add(block.decoder);
  device.mean = image_.add(block.mean);
  device.steps = image_.add(block.steps);
  if (keys) {
    block.first = case_numbers(n, seed + 3);
    device.first = image_.add(block.first);
  }
  tile_bytes_ += block.layout.bytes();
  of.num_coefficients += static_cast<int>(k);
  of.most_coefficients = std::max(of.most_coefficients, static_cast<int>(k));
}

// [kDim] turned to a position by RoPE, or back from it.
std::vector<float> PagedCase::turned(std::vector<float> row, int position, bool back) const {
  for (int pair = 0; pair < kPairs; ++pair) {
    const float cos = angles_.cos[at(position * kPairs + pair)];
    const float sin = (back ? -1.0f : 1.0f) * angles_.sin[at(position * kPairs + pair)];
    rotate_pair(cos, sin, row[at(pair)], row[at(pair + kPairs)]);
  }
  return row;
}

std::vector<float> PagedCase::engine_row(int token, bool value, int head) const {
  const std::int64_t first = ((std::int64_t{token} * 2 + (value ? 1 : 0)) * kHeads + head) * kDim;
  std::vector<float> row;
  for (std::int64_t i = first; i < first + kDim; ++i) {
    row.push_back(widened(element, rows[at(i)]));
  }
  return row;
}

std::vector<float> PagedCase::mean_of(const CaseBlock& block, int position) const {
  const std::vector<float>& mean = block.mean_of(position);
  return block.device.rotated ? turned(mean, position, false) : mean;
}

// Coefficients of all tokens and a block, by definition. [kTokens, k]
std::vector<float> PagedCase::coefficients_of(const CaseBlock& block) const {
  std::vector<float> z;
  for (int token = 0; token < kTokens; ++token) {
    std::vector<float> y;
    for (int head = 0; head < block.device.num_heads; ++head) {
      std::vector<float> row =
          engine_row(token, block.device.has_values, block.device.first_head + head);
      if (block.device.has_keys && !block.device.rotated) {
        row = turned(row, token, true);
      }
      y.insert(y.end(), row.begin(), row.end());
    }
    const std::vector<float> mean = mean_of(block, token);
    for (int c = 0; c < block.k(); ++c) {
      double sum = 0;
      for (int i = 0; i < block.n(); ++i) {
        sum += static_cast<double>(block.encoder[at(i * block.k() + c)]) * (y[at(i)] - mean[at(i)]);
      }
      z.push_back(static_cast<float>(sum));
    }
  }
  return z;
}

// A token's keys or values of a head from its codes.
std::vector<float> PagedCase::decoded(int token, bool value, int head) const {
  const std::size_t number = value ? 2 : at(head);
  const CaseBlock& block = blocks[number];
  std::vector<float> row = mean_of(block, token);
  for (int i = 0; i < block.n(); ++i) {
    for (int c = 0; c < block.k(); ++c) {
      row[at(i)] +=
          block.decoder[at(c * block.n() + i)] * levels[number][at(token * block.k() + c)];
    }
  }
  const auto first = row.begin() + (head - block.device.first_head) * kDim;
  std::vector<float> own(first, first + kDim);
  return value || block.device.rotated ? own : turned(own, token, false);
}

std::uint8_t* PagedCase::tile_at_place(const CaseBlock& block, int tile) const {
  return pages.data + table[at(tile / kPageTiles)] * pages.stride +
         block.device.page_offset * kPageTiles + tile % kPageTiles * block.layout.bytes();
}

}  // namespace kvc::testing
