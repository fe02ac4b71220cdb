// A tile of one store's rows.
#if defined(KVC_RUNTIME_KERNELS_TILE_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_TILE_ROWS_INL_H_
#undef KVC_RUNTIME_KERNELS_TILE_ROWS_INL_H_
#else
#define KVC_RUNTIME_KERNELS_TILE_ROWS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>

#include "runtime/kernels/read_ahead.h"
#include "runtime/kernels/row_sources-inl.h"
#include "runtime/kernels/unpack_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

// `channels` and zeros up to a whole number of vector pairs.
inline std::int64_t padded_width(std::int64_t channels) {
  const std::int64_t pair = 2 * wide_lanes();
  return (channels + pair - 1) / pair * pair;
}

// Contiguous rows of one block.
inline std::int64_t rows_in_block(const KvRows& rows, std::int64_t first) {
  return rows.block_rows - first % rows.block_rows;
}
inline bool has_row_groups(const KvRows& rows) {
  return is_quantised(rows.element) && rows.scales == KvScales::kPerChannel;
}

// body(row type) of the element's rows.
template <class Body>
void with_element(KvElement element, const Body& body) {
  switch (element) {
    case KvElement::kFloat32:
      return body(Float32Row());
    case KvElement::kBFloat16:
      return body(BFloat16Row());
    case KvElement::kFloat16:
      return body(Float16Row());
    case KvElement::kInt8:
      return body(Int8Row());
    case KvElement::kInt4:
      return body(Int4Row());
    case KvElement::kInt2:
      return body(Int2Row());
  }
}

// A tile of one store's rows.
class TileRows {
 public:
  TileRows(const KvRows& rows, std::int64_t width, std::int64_t head_dim)
      : rows_(rows),
        width_(width),
        head_dim_(head_dim),
        stride_(has_row_groups(rows) ? width * element_bits(rows.element) / 8 : bytes_of_rows(1)),
        group_bytes_(has_row_groups(rows) ? bytes_of_rows(kQuantisedRows) : 0),
        scales_(width, head_dim) {}

  const KvRows& rows() const { return rows_; }
  std::int64_t width() const { return width_; }
  std::int64_t head_dim() const { return head_dim_; }
  // Index of the first row in its group of rows; 0 without groups.
  std::int64_t in_group() const { return in_group_; }
  const TileScales& scales() const { return scales_; }
  ReadAhead& ahead() { return ahead_; }

  // Rows first .. first + count - 1 of one block; `last` is the end of the rows that will be read.
  void begin(std::int64_t first, std::int64_t count, std::int64_t last) {
    in_group_ = has_row_groups(rows_) ? first % rows_.block_rows % kQuantisedRows : 0;
    begin_ = kv_row_place(rows_, width_, head_dim_, first).codes - in_group_ * stride_;
    scales_.set(rows_, first, count);
    const std::int64_t next = first + count, more = std::min(count, last - next);
    ahead_ = more <= 0 ? ReadAhead()
                       : ReadAhead(kv_row_place(rows_, width_, head_dim_, next).codes,
                                   bytes_of_rows(more));
  }
  // Numbers from `channel` on of the tile's row `line`.
  const std::uint8_t* at(std::int64_t line, std::int64_t channel) const {
    const std::uint8_t* from = begin_ + channel * element_bits(rows_.element) / 8;
    if (group_bytes_ == 0) {
      return from + line * stride_;
    }
    const std::int64_t row = in_group_ + line;
    return from + row / kQuantisedRows * group_bytes_ + row % kQuantisedRows * stride_;
  }
  std::int64_t stride() const {
    return stride_;
  }  // bytes from row to row, of a group where there are
  void unpack(std::int64_t line, std::int64_t count, std::int64_t channel, std::int64_t channels,
              std::int64_t to_stride, float* to) const {
    const RowsPiece piece{&rows_, width_, head_dim_, channel, channels};
    for (std::int64_t row = line; row < line + count; ++row, to += to_stride) {
      unpack_row(piece, at(row, 0), scales_, row, to);
    }
  }

 private:
  std::int64_t bytes_of_rows(std::int64_t count) const {
    return kv_rows_bytes(count, width_, head_dim_, rows_.element, rows_.scales);
  }

  const KvRows& rows_;
  std::int64_t width_, head_dim_;
  std::int64_t stride_, group_bytes_;
  std::int64_t in_group_ = 0;
  const std::uint8_t* begin_ = nullptr;  // the first row; of its group where there are
  TileScales scales_;
  ReadAhead ahead_;
};

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
