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

// Rows that lie together: in one block.
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
      : rows_(rows), width_(width), head_dim_(head_dim), scales_(width, head_dim) {}

  const KvRows& rows() const { return rows_; }
  std::int64_t width() const { return width_; }
  std::int64_t head_dim() const { return head_dim_; }
  std::int64_t first() const { return first_; }
  const TileScales& scales() const { return scales_; }
  ReadAhead& ahead() { return ahead_; }

  void begin(std::int64_t first, std::int64_t count, std::int64_t last) {
    first_ = first;
    scales_.set(rows_, first, count);
    const std::int64_t next = first + count, more = std::min(count, last - next);
    ahead_ = more <= 0
                 ? ReadAhead()
                 : ReadAhead(kv_row_place(rows_, width_, head_dim_, next).codes,
                             kv_rows_bytes(more, width_, head_dim_, rows_.element, rows_.scales));
  }
  // Numbers from `channel` on of the tile's row `line`.
  const std::uint8_t* at(std::int64_t line, std::int64_t channel) const {
    return kv_row_place(rows_, width_, head_dim_, first_ + line).codes + bytes_of(channel);
  }
  std::int64_t stride() const {
    return has_row_groups(rows_) ? bytes_of(width_)
                                 : kv_rows_bytes(1, width_, head_dim_, rows_.element, rows_.scales);
  }
  void unpack(std::int64_t line, std::int64_t count, std::int64_t channel, std::int64_t channels,
              std::int64_t to_stride, float* to) const {
    const RowsPiece piece{&rows_, width_, head_dim_, channel, channels};
    for (std::int64_t row = line; row < line + count; ++row, to += to_stride) {
      unpack_row(piece, scales_, first_ + row, row, to);
    }
  }

 private:
  std::int64_t bytes_of(std::int64_t channels) const {
    return channels * element_bits(rows_.element) / 8;
  }

  const KvRows& rows_;
  std::int64_t width_, head_dim_, first_ = 0;
  TileScales scales_;
  ReadAhead ahead_;
};

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
