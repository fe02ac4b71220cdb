// Tokens of an engine's pages on the GPU against plain loops.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/runtime/kernels/cuda/case_tiles.h"
#include "tests/runtime/kernels/cuda/kernel_cases.h"
#include "tests/runtime/kernels/cuda/paged_case.h"

namespace kvc::testing {
namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

std::string check_codes(PagedCase& paged, KernelBackend& backend, const std::vector<float>& z) {
  paged.levels.assign(paged.blocks.size(), {});
  for (std::size_t i = 0; i < paged.blocks.size(); ++i) {
    const CaseBlock& block = paged.blocks[i];
    std::vector<float> own;
    for (int token = 0; token < kTokens; ++token) {
      const auto from = z.begin() + std::int64_t{token} * paged.of.num_coefficients +
                        block.device.first_coefficient;
      own.insert(own.end(), from, from + block.k());
    }
    std::string difference = compare("coefficients paged.of block " + std::to_string(i), own,
                                     paged.coefficients_of(block), 1e-4);
    for (int tile = 0; tile * 32 < kTokens && difference.empty(); ++tile) {
      const auto bytes = at(block.layout.bytes());
      difference =
          check_tile(block.layout, own.data() + at(tile * 32 * block.k()),
                     at(std::min(32, kTokens - tile * 32)), block.steps,
                     backend.download(paged.tile_at_place(block, tile), bytes), paged.levels[i]);
    }
    if (!difference.empty()) {
      return "block " + std::to_string(i) + ": " + difference;
    }
  }
  return {};
}

// Stores tokens in three launches.
std::string check_store(PagedCase& paged, KernelBackend& backend) {
  const auto* numbers = backend.upload(paged.rows);
  auto* z = backend.unwritten<float>(at(std::int64_t{kTokens} * paged.of.num_coefficients));
  int first = 0;
  for (const int last : {37, 38, kTokens}) {
    std::vector<std::int64_t> slots, positions;
    for (int token = first; token < last; ++token) {
      slots.push_back(std::int64_t{paged.table[at(token / kPageTokens)]} * kPageTokens +
                      token % kPageTokens);
      positions.push_back(token);
    }
    EncodeTokens encode;
    encode.of = paged.of;
    const std::int64_t stride = 2 * kHeads * kDim;
    encode.keys[0] = {numbers + first * stride, stride, kDim};
    encode.values[0] = {numbers + first * stride + kHeads * kDim, stride, kDim};
    encode.ropes[0] = paged.of.rope;
    encode.element = paged.element;
    encode.positions = backend.upload(positions);
    encode.num_positions = kTokens;
    encode.count = last - first;
    encode.z = z + std::int64_t{first} * paged.of.num_coefficients;
    backend.run(encode);
    backend.run(StoreCodes{.of = paged.of,
                           .pages = paged.pages,
                           .slots = backend.upload(slots),
                           .count = static_cast<int>(slots.size()),
                           .z = encode.z});
    first = last;
  }
  // Slots without a place change nothing.
  const std::vector<std::int64_t> nowhere = {-1, std::int64_t{kPages} * kPageTokens};
  backend.run(StoreCodes{
      .of = paged.of, .pages = paged.pages, .slots = backend.upload(nowhere), .count = 2, .z = z});
  return check_codes(paged, backend,
                     backend.download(z, at(std::int64_t{kTokens} * paged.of.num_coefficients)));
}

std::string check_read(const PagedCase& paged, KernelBackend& backend) {
  const std::vector<HeadPlace> places = {{0, 0}, {1, 0}, {2, 0}, {2, kDim}};
  for (const int first : {0, 32}) {
    const int count = first == 0 ? 1 : kTokens - first;
    const auto size = at(std::int64_t{count} * kHeads * kDim);
    auto* keys = backend.unwritten<std::uint16_t>(size);
    auto* values = backend.unwritten<std::uint16_t>(size);
    backend.run(ReadTokens{.of = paged.of,
                           .pages = paged.pages,
                           .page_numbers = backend.upload(paged.table),
                           .first = first,
                           .count = count,
                           .places = backend.upload(places),
                           .element = paged.element,
                           .keys = keys,
                           .values = values});
    for (const bool value : {false, true}) {
      std::vector<float> expected, actual;
      for (int token = first; token < first + count; ++token) {
        for (int head = 0; head < kHeads; ++head) {
          const std::vector<float> row = paged.decoded(token, value, head);
          expected.insert(expected.end(), row.begin(), row.end());
        }
      }
      for (const std::uint16_t bits : backend.download(value ? values : keys, size)) {
        actual.push_back(widened(paged.element, bits));
      }
      // Relative to the largest: numbers of some hundreds.
      float largest = 1;
      for (const float number : expected) {
        largest = std::max(largest, std::fabs(number));
      }
      std::string difference = compare(value ? "values" : "keys", actual, expected,
                                       largest * case_tolerance(paged.element));
      if (!difference.empty()) {
        return "tokens from " + std::to_string(first) + ": " + difference;
      }
    }
  }
  return {};
}

std::string check_places(const PagedCase& paged, KernelBackend& backend) {
  const std::vector<std::int32_t> tokens = {1, 33, 70}, order = {0, 1, 2, 2};
  const std::vector<std::int32_t> tables = {3, 1, 0, 4, 2, 1};
  for (const int window : {0, 45}) {
    PlacePages places{.of = paged.of,
                      .pages = paged.pages,
                      .span = {window, true, true},
                      .page_numbers = backend.upload(tables),
                      .page_stride = 2,
                      .tokens = backend.upload(tokens),
                      .num_sequences = 3,
                      .most_pages = 2,
                      .order = backend.upload(order),
                      .num_tiles = 4,
                      .tiles = backend.unwritten<DeviceTiles>(4),
                      .addresses = backend.unwritten<const void*>(24),
                      .num_rows = backend.unwritten<std::int32_t>(3),
                      .first_rows = backend.unwritten<std::int32_t>(3)};
    backend.run(places);
    const std::vector<std::int32_t> num_rows = {0, 32, 64};
    const std::vector<std::int32_t> firsts = {0, 1, window == 0 ? 1 : 25};
    if (backend.download(places.num_rows, 3) != num_rows ||
        backend.download(places.first_rows, 3) != firsts) {
      return "rows under a window paged.of " + std::to_string(window);
    }
    const auto tiles = backend.download(places.tiles, 4);
    const auto addresses = backend.download(places.addresses, 24);
    for (std::size_t i = 0; i < 4; ++i) {
      const CaseBlock& block = paged.blocks[at(order[i])];
      const auto address = [&](std::int32_t page) {
        return paged.pages.data + page * paged.pages.stride + block.device.page_offset * kPageTiles;
      };
      if (tiles[i].blocks != places.addresses + 6 * i || tiles[i].max_blocks != 2 ||
          tiles[i].block_tiles != kPageTiles ||
          tiles[i].code_bytes != block.device.tiles.code_bytes ||
          addresses[6 * i + 2] != address(0) || addresses[6 * i + 4] != address(2)) {
        return "tiles paged.of block " + std::to_string(i);
      }
    }
  }
  return {};
}

std::string paged_case(DeviceElement element, KernelBackend& backend) {
  PagedCase paged(backend, element);
  std::string difference = check_store(paged, backend);
  if (difference.empty()) {
    difference = check_read(paged, backend);
  }
  return difference.empty() ? check_places(paged, backend) : difference;
}

}  // namespace

std::vector<KernelCase> paged_cases() {
  std::vector<KernelCase> cases;
  for (const DeviceElement element : {DeviceElement::kBFloat16, DeviceElement::kFloat16}) {
    cases.push_back({"paged_tokens_" + element_name(element),
                     [element](KernelBackend& backend) { return paged_case(element, backend); }});
  }
  return cases;
}

}  // namespace kvc::testing
