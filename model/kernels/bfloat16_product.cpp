#include "model/kernels/bfloat16_product.h"

#include <algorithm>
#include <array>
#include <vector>

#include "model/kernels/bfloat16_block.h"
#include "model/kernels/cpu_features.h"

#if KVC_HAS_BFLOAT16_TILES
KVC_BEFORE_BFLOAT16_TILES();
namespace kvc {
namespace {

static_assert(kProductRows == kBlockRows && kProductColumns == kPanelColumns);
static_assert(2 * kLanes == kInt8Group);

// For channels, summed over at a time: with as many columns an eighth of a second-level cache.
constexpr std::int64_t kMaxPairs = 512;

std::int64_t pairs_together(std::int64_t pairs) {
  const std::int64_t parts = (pairs + kMaxPairs - 1) / kMaxPairs;
  return round_up_to((pairs + parts - 1) / parts, kLanes);
}

// x in order: for the pairs that are summed over together, for a block of rows: [pairs][kBlockRows].
std::uint32_t* place_in(std::uint32_t* ordered, std::int64_t blocks, std::int64_t block,
                        std::int64_t first_pair, std::int64_t count) {
  return ordered + kBlockRows * (blocks * first_pair + block * count);
}

// Places in two vectors, one behind the other, of the units that make three vectors of a, b and c in turns:
// first of a and b, then of those and c.
struct Turns {
  alignas(64) std::array<std::array<std::int64_t, 8>, 3> of_ab, of_abc;
};
constexpr Turns turns() {
  Turns result{};
  for (std::size_t i = 0; i < 24; ++i) {
    const auto unit = static_cast<std::int64_t>(i / 3), place = static_cast<std::int64_t>(i % 8);
    result.of_ab[i / 8][i % 8] = i % 3 == 1 ? 8 + unit : unit;
    result.of_abc[i / 8][i % 8] = i % 3 == 2 ? 8 + unit : place;
  }
  return result;
}

// kLanes pairs of each of the rows of a block. to: [kLanes][kBlockRows]
void order_pairs(const __m512i (&rows)[kBlockRows], std::uint32_t* to) {
  static constexpr Turns kTurns = turns();
  const __m512i low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  for (int half = 0; half < 2; ++half, to += 3 * kLanes) {
    const __m512i two = _mm512_add_epi32(low, _mm512_set1_epi32(8 * half));
    const __m512i a = _mm512_permutex2var_epi32(rows[0], two, rows[1]);
    const __m512i b = _mm512_permutex2var_epi32(rows[2], two, rows[3]);
    const __m512i c = _mm512_permutex2var_epi32(rows[4], two, rows[5]);
    for (std::size_t i = 0; i < 3; ++i) {
      const __m512i ab = _mm512_permutex2var_epi64(a, _mm512_load_si512(kTurns.of_ab[i].data()), b);
      _mm512_storeu_si512(
          to + static_cast<std::int64_t>(i) * kLanes,
          _mm512_permutex2var_epi64(ab, _mm512_load_si512(kTurns.of_abc[i].data()), c));
    }
  }
}

// Pairs of rows of codes, rounded.
struct Int8Pairs {
  const Int8Matrix& matrix;
  std::int64_t first_row, first_pair;

  __m512i operator()(std::int64_t row, std::int64_t pair, __mmask16) const {
    const std::int64_t group =
        (first_row + row) * int8_groups(matrix.in) + (first_pair + pair) / kLanes;
    const std::int8_t* codes = matrix.codes + group * kInt8Group;
    const __m512 scale =
        _mm512_cvtph_ps(_mm256_set1_epi16(static_cast<std::int16_t>(matrix.scales[group])));
    return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(
        _mm512_mul_ps(floats(codes + kLanes), scale), _mm512_mul_ps(floats(codes), scale)));
  }

 private:
  static __m512 floats(const std::int8_t* codes) {
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes))));
  }
};

void pack_weights(const Bfloat16Product& product, std::int64_t first, std::int64_t columns,
                  std::int64_t pair, std::int64_t count, std::uint32_t* panel) {
  const std::int64_t whole = round_up_to(columns, kLanes);
  if (product.weight == nullptr) {
    return pack_columns(Int8Pairs{product.int8, first, pair}, columns, count, whole, panel);
  }
  pack_columns(RowPairs{product.weight + first * product.in + 2 * pair, product.in}, columns, count,
               whole, panel);
}

void order_block(const Bfloat16Product& product, std::int64_t block, std::uint32_t* ordered) {
  const std::int64_t pairs = product.in / 2, together = pairs_together(pairs);
  const std::uint16_t* rows[kBlockRows];
  for (std::int64_t row = 0; row < kBlockRows; ++row) {
    rows[row] =
        product.x + std::min(block * kBlockRows + row, product.num_rows - 1) * product.x_stride;
  }
  for (std::int64_t pair = 0; pair < pairs; pair += kLanes) {
    const std::int64_t first = pair / together * together;
    const std::int64_t count = std::min(kLanes, pairs - pair);
    const auto mask = static_cast<__mmask16>((std::uint32_t{1} << count) - 1);
    __m512i of_rows[kBlockRows];
#pragma GCC unroll 8
    for (int row = 0; row < kBlockRows; ++row) {
      of_rows[row] = _mm512_maskz_loadu_epi32(mask, rows[row] + 2 * pair);
    }
    std::uint32_t* to = place_in(ordered, product_blocks(product.num_rows), block, first,
                                 std::min(together, pairs - first)) +
                        (pair - first) * kBlockRows;
    if (count == kLanes) {
      order_pairs(of_rows, to);
      continue;
    }
    std::uint32_t last[kLanes * kBlockRows];
    order_pairs(of_rows, last);
    std::copy_n(last, count * kBlockRows, to);
  }
}

void multiply(const Bfloat16Product& product, const Bfloat16Task& task,
              const std::uint32_t* ordered, std::uint32_t* memory) {
  const std::int64_t pairs = product.in / 2, together = pairs_together(pairs);
  const std::int64_t columns = std::min(kPanelColumns, product.out - task.first_output);
  const std::size_t vectors = static_cast<std::size_t>((columns + kLanes - 1) / kLanes);
  const std::int64_t blocks = task.last_block - task.first_block;
  alignas(64) float bias[kPanelColumns] = {};
  if (product.bias != nullptr) {
    std::copy_n(product.bias + task.first_output, columns, bias);
  }
  auto* sums = reinterpret_cast<float*>(memory + together * kPanelColumns);
  for (std::int64_t pair = 0; pair < pairs; pair += together) {
    const std::int64_t count = std::min(together, pairs - pair), next = pair + count;
    pack_weights(product, task.first_output, columns, pair, count, memory);
    Ahead ahead = next < pairs
                      ? Ahead(product, task.first_output, next, std::min(together, pairs - next))
                      : Ahead(product, task.next_output, 0, together);
    ProductBlock block{.rows = nullptr,
                       .panel = memory,
                       .pairs = count,
                       .pairs_per_line = std::max<std::int64_t>(
                           1, blocks * count / std::max<std::int64_t>(1, ahead.lines())),
                       .sums = sums,
                       .is_first = pair == 0,
                       .is_last = next >= pairs,
                       .bias = bias,
                       .y = nullptr,
                       .y_stride = product.y_stride,
                       .columns = columns};
    for (std::int64_t i = task.first_block; i < task.last_block; ++i) {
      const std::int64_t rows = std::min(kBlockRows, product.num_rows - i * kBlockRows);
      block.rows = ordered + kBlockRows * (product_blocks(product.num_rows) * pair + i * count);
      block.y = product.y + i * kBlockRows * product.y_stride + task.first_output;
      kMultiplyRows[static_cast<std::size_t>(rows - 1)][vectors - 1](block, ahead);
      block.sums += kBlockRows * kPanelColumns;
    }
  }
}

}  // namespace
}  // namespace kvc
HWY_POP_ATTRIBUTES
#endif  // KVC_HAS_BFLOAT16_TILES

namespace kvc {

bool bfloat16_product_is_fast(std::int64_t in) {
  return in > 0 && in % 2 == 0 && has_bfloat16_products();
}

std::int64_t ordered_size(const Bfloat16Product& product) {
  return product_blocks(product.num_rows) * kProductRows * (product.in / 2);
}

#if KVC_HAS_BFLOAT16_TILES

std::int64_t task_memory_size(const Bfloat16Product& product, std::int64_t num_blocks) {
  const std::int64_t pairs = product.in / 2, together = pairs_together(pairs);
  return kPanelColumns * (together + (together < pairs ? num_blocks * kBlockRows : 0));
}

void order_rows(const Bfloat16Product& product, std::int64_t first, std::int64_t last,
                std::uint32_t* ordered) {
  for (std::int64_t block = first; block < last; ++block) {
    order_block(product, block, ordered);
  }
}

void multiply_task(const Bfloat16Product& product, const Bfloat16Task& task,
                   const std::uint32_t* ordered, std::uint32_t* memory) {
  multiply(product, task, ordered, memory);
}

#else

std::int64_t task_memory_size(const Bfloat16Product&, std::int64_t) { return 0; }

void order_rows(const Bfloat16Product&, std::int64_t, std::int64_t, std::uint32_t*) {}

void multiply_task(const Bfloat16Product&, const Bfloat16Task&, const std::uint32_t*,
                   std::uint32_t*) {}

#endif

void bfloat16_product(const Bfloat16Product& product) {
  if (!bfloat16_product_is_fast(product.in)) {
    return bfloat16_product_reference(product);
  }
  const std::int64_t blocks = product_blocks(product.num_rows);
  std::vector<std::uint32_t> ordered(static_cast<std::size_t>(ordered_size(product)));
  std::vector<std::uint32_t> memory(static_cast<std::size_t>(task_memory_size(product, blocks)));
  order_rows(product, 0, blocks, ordered.data());
  for (std::int64_t first = 0; first < product.out; first += kProductColumns) {
    multiply_task(product, {first, 0, blocks, first + kProductColumns}, ordered.data(),
                  memory.data());
  }
}

}  // namespace kvc
