#include "runtime/store/row_store.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "model/parallel.h"
#include "runtime/kernels/quantise.h"
#include "runtime/store/element_type.h"

namespace kvc {
namespace {

constexpr double kLargestFloat16 = 65504;

std::int64_t product(const std::vector<std::int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

// Bytes of `rows` rows; of a group of rows where they share scales.
std::int64_t row_bytes(const RowFormat& format, std::int64_t rows) {
  const std::int64_t width = product(format.shape);
  if (!format.codes) {
    return rows * width * static_cast<std::int64_t>(c10::elementSize(format.dtype));
  }
  const RowCodes& codes = *format.codes;
  const std::int64_t head_dim = format.shape.back();
  KVC_CHECK(
      codes.scales == KvScales::kPerRow || rows % kQuantisedRows == 0,
      "KV cache: pages of {} rows, but {} rows share scales; use --page-tokens {} or a multiple",
      rows, kQuantisedRows, kQuantisedRows);
  const int bits = element_bits(codes.element);
  KVC_CHECK(head_dim * bits % 8 == 0,
            "KV cache: int{} stores {} channels in a byte, a row has {}; use int8", bits, 8 / bits,
            head_dim);
  return kv_rows_bytes(rows, width, head_dim, codes.element, codes.scales);
}

}  // namespace

RowStore::RowStore(std::shared_ptr<KvPool> pool, RowFormat format)
    : format_(std::move(format)),
      width_(product(format_.shape)),
      head_dim_(format_.shape.empty() ? 1 : format_.shape.back()),
      blocks_(pool, row_bytes(format_, pool->page_tokens())) {
  if (!format_.codes || format_.codes->scales == KvScales::kPerRow) {
    row_bytes_ = row_bytes(format_, 1);
  }
}

RowStore RowStore::with_row_scales() const {
  RowFormat format = format_;
  format.codes->scales = KvScales::kPerRow;
  return {blocks_.shared_pool(), std::move(format)};
}

std::int64_t RowStore::bytes_of(std::int64_t rows) const { return row_bytes(format_, rows); }

at::Tensor RowStore::empty_rows(std::int64_t count, at::ScalarType dtype) const {
  std::vector<std::int64_t> shape{count};
  shape.insert(shape.end(), format_.shape.begin(), format_.shape.end());
  return at::empty(shape, at::TensorOptions().dtype(dtype));
}

void RowStore::resize(std::int64_t rows) {
  blocks_.resize((std::max(rows, reserved_rows_) + page() - 1) / page());
  num_rows_ = rows;
}

void RowStore::reserve(std::int64_t rows) {
  reserved_rows_ = rows;
  resize(num_rows_);
}

const std::byte* RowStore::row(std::int64_t index) const {
  return blocks_.data(index / page()) + row_bytes_ * (index % page());
}

std::byte* RowStore::mutable_row(std::int64_t index) {
  return blocks_.writable(index / page()) + row_bytes_ * (index % page());
}

// In the type that is written: the store's, or what codes are made from.
at::Tensor RowStore::stored(const at::Tensor& rows) const {
  const at::ScalarType type = rows.scalar_type();
  if (type == format_.dtype && !has_codes()) {
    return rows.contiguous();
  }
  if (has_codes()) {
    const bool readable = type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
    return (readable ? rows : rows.to(at::kFloat)).contiguous();
  }
  const bool saturates = format_.dtype == at::kHalf && type != at::kHalf;
  // In float32, which has the bounds themselves.
  return (saturates ? rows.to(at::kFloat).clamp(-kLargestFloat16, kLargestFloat16) : rows)
      .to(format_.dtype)
      .contiguous();
}

void RowStore::append(const at::Tensor& rows) {
  const std::int64_t first = num_rows_, count = rows.size(0);
  if (count == 0) {
    return;
  }
  KVC_CHECK(rows.numel() == count * width_, "KV cache: rows of {} numbers expected, {} found",
            width_, rows.numel() / count);
  resize(first + count);
  has_codes() ? write_codes(first, stored(rows)) : write(first, stored(rows));
}

void RowStore::write(std::int64_t first, const at::Tensor& rows) {
  const auto* from = static_cast<const std::byte*>(rows.const_data_ptr());
  for (std::int64_t row = first; row < num_rows_;) {
    const std::int64_t count = std::min(page() - row % page(), num_rows_ - row);
    std::memcpy(blocks_.writable(row / page()) + bytes_of(row % page()), from,
                static_cast<std::size_t>(bytes_of(count)));
    from += bytes_of(count);
    row += count;
  }
}

void RowStore::write_codes(std::int64_t first, const at::Tensor& rows) {
  const auto* from = static_cast<const std::byte*>(rows.const_data_ptr());
  const auto from_bytes = width_ * static_cast<std::int64_t>(rows.element_size());
  std::vector<QuantiseParams> runs;  // one per block
  for (std::int64_t row = first; row < num_rows_;) {
    const std::int64_t count = std::min(page() - row % page(), num_rows_ - row);
    runs.push_back({.from = from,
                    .from_element = element_of(rows.scalar_type()),
                    .count = count,
                    .width = width_,
                    .head_dim = head_dim_,
                    .element = format_.codes->element,
                    .scales = format_.codes->scales,
                    .to = blocks_.writable(row / page()) + bytes_of(row % page())});
    from += count * from_bytes;
    row += count;
  }
  const std::int64_t grain = std::max<std::int64_t>(1, kNumbersPerThread / (page() * width_));
  parallel_pieces(static_cast<std::int64_t>(runs.size()), grain,
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t run = begin; run < end; ++run) {
                      quantise_rows(runs[static_cast<std::size_t>(run)]);
                    }
                  });
}

void RowStore::erase(std::int64_t first, std::int64_t count) {
  KVC_CHECK(!has_codes() && first >= 0 && count >= 0 && first + count <= num_rows_,
            "KV cache: rows {} to {} of {} cannot be removed", first, first + count, num_rows_);
  std::int64_t to = first, from = first + count;
  while (count > 0 && from < num_rows_) {
    const std::int64_t moved =
        std::min({page() - to % page(), page() - from % page(), num_rows_ - from});
    std::byte* target = blocks_.writable(to / page()) + bytes_of(to % page());
    std::memmove(target, blocks_.data(from / page()) + bytes_of(from % page()),
                 static_cast<std::size_t>(bytes_of(moved)));
    to += moved;
    from += moved;
  }
  resize(num_rows_ - count);
}

void RowStore::keep(const std::vector<std::int64_t>& indices) {
  KVC_CHECK(row_bytes_ > 0, "KV cache: rows that share scales cannot be removed one by one");
  std::int64_t to = 0;
  for (const std::int64_t from : indices) {
    if (from != to) {
      std::byte* target = mutable_row(to);
      std::memcpy(target, row(from), static_cast<std::size_t>(row_bytes_));
    }
    ++to;
  }
  resize(to);
}

void RowStore::reorder(std::int64_t first, const std::vector<std::int64_t>& order) {
  KVC_CHECK(row_bytes_ > 0, "KV cache: rows that share scales cannot be moved one by one");
  const auto bytes = static_cast<std::size_t>(row_bytes_);
  std::vector<std::byte> rows(order.size() * bytes);
  for (std::size_t i = 0; i < order.size(); ++i) {
    std::memcpy(rows.data() + i * bytes, row(first + order[i]), bytes);
  }
  for (std::size_t i = 0; i < order.size(); ++i) {
    std::memcpy(mutable_row(first + static_cast<std::int64_t>(i)), rows.data() + i * bytes, bytes);
  }
}

void RowStore::read(std::int64_t first, std::int64_t count, at::ScalarType type,
                    std::byte* to) const {
  KVC_CHECK(first >= 0 && count >= 0 && first + count <= num_rows_,
            "KV cache: rows {} to {} of {} cannot be read", first, first + count, num_rows_);
  if (has_codes()) {
    dequantise_rows({.rows = table(),
                     .width = width_,
                     .head_dim = head_dim_,
                     .first = first,
                     .last = first + count,
                     .to_element = element_of(type),
                     .to = to});
    return;
  }
  for (std::int64_t row = first; row < first + count;) {
    const std::int64_t run = std::min(page() - row % page(), first + count - row);
    std::memcpy(to, blocks_.data(row / page()) + bytes_of(row % page()),
                static_cast<std::size_t>(bytes_of(run)));
    to += bytes_of(run);
    row += run;
  }
}

at::Tensor RowStore::rows(std::int64_t first, std::int64_t count, at::ScalarType dtype) const {
  const at::Tensor numbers = empty_rows(count, read_type(dtype));
  auto* to = static_cast<std::byte*>(numbers.mutable_data_ptr());
  const auto bytes = width_ * static_cast<std::int64_t>(numbers.element_size());
  const std::int64_t grain = std::max<std::int64_t>(1, kNumbersPerThread / width_);
  parallel_pieces(count, grain, [&](std::int64_t begin, std::int64_t end) {
    read(first + begin, end - begin, numbers.scalar_type(), to + begin * bytes);
  });
  return numbers.to(dtype);
}

at::Tensor RowStore::rows(const std::vector<RowRun>& runs, at::ScalarType dtype) const {
  std::int64_t count = 0;
  for (const RowRun& run : runs) {
    count += run.count;
  }
  const at::Tensor numbers = empty_rows(count, read_type(dtype));
  auto* to = static_cast<std::byte*>(numbers.mutable_data_ptr());
  for (const RowRun& run : runs) {
    read(run.first, run.count, numbers.scalar_type(), to);
    to += run.count * width_ * static_cast<std::int64_t>(numbers.element_size());
  }
  return numbers.to(dtype);
}

KvRows RowStore::table() const {
  return {.blocks = blocks_.table(),
          .block_rows = page(),
          .num_rows = num_rows_,
          .element = has_codes() ? format_.codes->element : element_of(format_.dtype),
          .scales = has_codes() ? format_.codes->scales : KvScales::kPerRow};
}

}  // namespace kvc
