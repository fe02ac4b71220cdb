#include "runtime/gpu/gpu_rows.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/arithmetic.h"

namespace kvc {
namespace {

// As `dtype`; float16 keeps numbers beyond its range at its largest.
at::Tensor cast(const at::Tensor& rows, at::ScalarType dtype) {
  constexpr double kLargestHalf = 65504;
  return dtype == at::kHalf && rows.scalar_type() != at::kHalf
             ? rows.clamp(-kLargestHalf, kLargestHalf).to(dtype)
             : rows.to(dtype);
}

}  // namespace

GpuRows::GpuRows(const GpuPages& pages, std::int64_t width, at::ScalarType dtype)
    : GpuRows(pages, width, dtype,
              dtype == at::kBFloat16 ? DeviceElement::kBFloat16 : DeviceElement::kFloat16, false) {}

GpuRows::GpuRows(const GpuPages& pages, std::int64_t width, DeviceElement codes, bool per_channel)
    : GpuRows(pages, width, at::kByte, codes, per_channel) {}

GpuRows::GpuRows(const GpuPages& pages, std::int64_t width, at::ScalarType dtype,
                 DeviceElement element, bool per_channel)
    : dtype_(dtype),
      element_(element),
      per_channel_(per_channel),
      device_(pages.device),
      width_(width),
      page_tokens_(pages.page_tokens),
      page_count_(pages.bytes),
      extents_(pages.most_rows.size()) {
  for (const std::int64_t rows : pages.most_rows) {
    max_blocks_ = std::max(max_blocks_, whole_pages(rows) / page_tokens_);
  }
  table_ = at::zeros({static_cast<std::int64_t>(extents_.size()), max_blocks_},
                     at::TensorOptions(at::kLong).device(device_));
}

std::int64_t GpuRows::whole_pages(std::int64_t rows) const { return round_up(rows, page_tokens_); }

std::int64_t GpuRows::capacity(std::size_t sequence) const {
  const std::vector<Extent>& extents = extents_[sequence];
  return extents.empty() ? 0 : extents.back().first + extents.back().count;
}

std::int64_t GpuRows::page_bytes() const {
  if (dtype_ != at::kByte) {
    return page_tokens_ * width_ * static_cast<std::int64_t>(at::elementSize(dtype_));
  }
  constexpr std::int64_t kScaleBytes = 4;  // with the minimum
  const std::int64_t scales =
      per_channel_ ? page_tokens_ / kScaledRows * width_ : page_tokens_ * width_ / kScaledChannels;
  return page_tokens_ * channel_bytes(element_, static_cast<int>(width_)) + scales * kScaleBytes;
}

void GpuRows::add_extent(std::size_t sequence, std::int64_t first, std::int64_t count,
                         bool is_ring) {
  const std::vector<std::int64_t> shape =
      dtype_ == at::kByte ? std::vector<std::int64_t>{count / page_tokens_, page_bytes()}
                          : std::vector<std::int64_t>{count, width_};
  add_extent(sequence,
             {at::zeros(shape, at::TensorOptions(dtype_).device(device_)), first, count, is_ring});
}

void GpuRows::add_extent(std::size_t sequence, Extent extent) {
  page_count_->add(static_cast<std::int64_t>(extent.rows.nbytes()));
  extents_[sequence].push_back(std::move(extent));
}

void GpuRows::count_gone(const std::vector<Extent>& extents) {
  for (const Extent& extent : extents) {
    page_count_->add(-static_cast<std::int64_t>(extent.rows.nbytes()));
  }
}

void GpuRows::reserve(std::size_t sequence, std::int64_t rows) {
  const std::int64_t lacking = rows - capacity(sequence);
  if (lacking > 0) {
    add_extent(sequence, capacity(sequence), whole_pages(lacking));
    write_table(sequence);
  }
}

void GpuRows::reserve_from(std::size_t sequence, std::int64_t first, std::int64_t rows) {
  const std::int64_t before = first / page_tokens_ * page_tokens_;
  add_extent(sequence, before, whole_pages(first + rows) - before);
  write_table(sequence);
}

void GpuRows::reserve_ring(std::size_t sequence, std::int64_t rows) {
  add_extent(sequence, 0, whole_pages(rows), /*is_ring=*/true);
  write_table(sequence);
}

void GpuRows::replace(std::size_t sequence, const at::Tensor& rows, std::int64_t capacity) {
  if (this->capacity(sequence) == whole_pages(capacity)) {
    write(sequence, 0, rows.clone());
    return;
  }
  std::vector<Extent> before = std::move(extents_[sequence]);  // which `rows` may be part of
  extents_[sequence].clear();
  if (capacity > 0) {
    add_extent(sequence, 0, whole_pages(capacity));
    write(sequence, 0, rows);
  }
  count_gone(before);
  write_table(sequence);
}

void GpuRows::copy(std::size_t from, std::size_t to) {
  count_gone(extents_[to]);
  extents_[to].clear();
  for (const Extent& extent : extents_[from]) {
    add_extent(to, {extent.rows.clone(), extent.first, extent.count, extent.is_ring});
  }
  write_table(to);
}

void GpuRows::allow(std::int64_t rows) {
  const std::int64_t blocks = whole_pages(rows) / page_tokens_;
  if (blocks <= max_blocks_) {
    return;
  }
  max_blocks_ = blocks;
  table_ = at::zeros({static_cast<std::int64_t>(extents_.size()), max_blocks_}, table_.options());
  for (std::size_t sequence = 0; sequence < extents_.size(); ++sequence) {
    write_table(sequence);
  }
}

std::vector<GpuRows::Piece> GpuRows::pieces(std::size_t sequence, std::int64_t first,
                                            std::int64_t count) const {
  std::vector<Piece> pieces;
  for (const Extent& extent : extents_[sequence]) {
    const std::int64_t behind = extent.is_ring ? first + count : extent.first + extent.count;
    const std::int64_t end = std::min(first + count, behind);
    for (std::int64_t row = std::max(first, extent.first); row < end;) {
      const std::int64_t at = (row - extent.first) % extent.count;
      const std::int64_t together = std::min(end - row, extent.count - at);
      pieces.push_back({extent.rows.narrow(0, at, together), row - first});
      row += together;
    }
  }
  return pieces;
}

void GpuRows::write(std::size_t sequence, std::int64_t first, const at::Tensor& rows) {
  for (const Piece& piece : pieces(sequence, first, rows.size(0))) {
    const std::int64_t count = piece.rows.size(0);
    piece.rows.copy_(cast(rows.narrow(0, piece.offset, count).reshape({count, width_}), dtype_));
  }
}

at::Tensor GpuRows::read(std::size_t sequence, std::int64_t first, std::int64_t count) const {
  std::vector<at::Tensor> parts;
  for (const Piece& piece : pieces(sequence, first, count)) {
    parts.push_back(piece.rows);
  }
  if (parts.empty()) {
    return at::zeros({0, width_}, at::TensorOptions(dtype_).device(device_));
  }
  return parts.size() == 1 ? parts.front() : at::cat(parts);
}

std::int64_t GpuRows::bytes(std::size_t sequence) const {
  std::int64_t bytes = 0;
  for (const Extent& extent : extents_[sequence]) {
    bytes += static_cast<std::int64_t>(extent.rows.nbytes());
  }
  return bytes;
}

void GpuRows::write_table(std::size_t sequence) {
  at::Tensor addresses = at::zeros({max_blocks_}, at::kLong);
  for (const Extent& extent : extents_[sequence]) {
    auto* to = addresses.mutable_data_ptr<std::int64_t>() + extent.first / page_tokens_;
    const auto first = reinterpret_cast<std::int64_t>(extent.rows.data_ptr());
    const std::int64_t pages = extent.count / page_tokens_;
    for (std::int64_t page = 0; page < (extent.is_ring ? max_blocks_ : pages); ++page) {
      to[page] = first + page % pages * page_bytes();
    }
  }
  // The copy has taken the addresses when it returns, and does not wait for what is queued before.
  table_[static_cast<std::int64_t>(sequence)].copy_(addresses, /*non_blocking=*/true);
}

DeviceRows GpuRows::table() const {
  return {.blocks = reinterpret_cast<const void* const*>(table_.data_ptr()),
          .max_blocks = max_blocks_,
          .block_rows = static_cast<int>(page_tokens_),
          .width = static_cast<int>(width_),
          .element = element_,
          .per_channel = per_channel_};
}

DeviceRows GpuRows::table(std::size_t sequence) const {
  DeviceRows rows = table();
  rows.blocks += static_cast<std::int64_t>(sequence) * max_blocks_;
  return rows;
}

DeviceElement device_element(at::ScalarType dtype) {
  KVC_CHECK(dtype == at::kBFloat16 || dtype == at::kHalf,
            "the GPU computes in bfloat16 and float16, not in {}; pass --dtype bfloat16",
            c10::toString(dtype));
  return dtype == at::kBFloat16 ? DeviceElement::kBFloat16 : DeviceElement::kFloat16;
}

}  // namespace kvc
