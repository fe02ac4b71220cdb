// Rows of one shape in blocks of a pool, as numbers or as integer codes. Erasing moves only rows
// behind the erased ones, appending none. Copies share blocks until one of them writes.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/kernels/kv_rows.h"
#include "runtime/store/block_list.h"
#include "runtime/store/kv_pool.h"

namespace kvc {

struct RowCodes {
  KvElement element = KvElement::kInt8;  // or another integer
  KvScales scales = KvScales::kPerRow;
};

struct RowFormat {
  std::vector<std::int64_t> shape;    // of a row, e.g. {num_kv_heads, head_dim} or {rank}
  at::ScalarType dtype = at::kFloat;  // of rows that are not coded
  std::optional<RowCodes> codes{};
};

// Rows of a layer or group that are widened to float32 at a time, to be encoded or rebuilt together.
inline constexpr std::int64_t kChunkTokens = 1024;

struct RowRun {
  std::int64_t first = 0, count = 0;
};

class RowStore {
 public:
  // Throws Error for rows that cannot be coded: integers require blocks of whole groups of rows,
  // and rows whose last axis fills whole bytes.
  RowStore(std::shared_ptr<KvPool> pool, RowFormat format);

  std::int64_t num_rows() const { return num_rows_; }
  at::ScalarType dtype() const { return format_.dtype; }
  bool has_codes() const { return format_.codes.has_value(); }
  bool has_row_scales() const { return has_codes() && row_bytes_ > 0; }
  // An empty store for such rows, whose codes have scales per row.
  RowStore with_row_scales() const;
  // Bytes of the blocks: rows rounded up to the pool's page_tokens.
  std::int64_t bytes() const { return blocks_.bytes(); }
  // New rows may be written into a block that a copy of the store has, too.
  bool shares_tail() const { return blocks_.shares_tail(); }

  // `rows` [n, shape...] of any type that casts to the store's; float16 saturates. With scales per
  // channel n is a multiple of kQuantisedRows.
  void append(const at::Tensor& rows);
  // Appends `count` uninitialised rows to a store without codes.
  void grow(std::int64_t count) { resize(num_rows_ + count); }
  // Removes rows first .. first + count - 1 of a store without codes; later rows move down.
  void erase(std::int64_t first, std::int64_t count);
  // Keeps only rows `indices` (ascending). For stores without codes or with scales per row.
  void keep(const std::vector<std::int64_t>& indices);
  // Reorders rows from `first` on: the i-th becomes the order[i]-th. For the same stores.
  void reorder(std::int64_t first, const std::vector<std::int64_t>& order);

  // Removes all rows from `rows` on.
  void truncate(std::int64_t rows) { resize(rows); }
  // Reserves the blocks of the first `rows` rows.
  void reserve(std::int64_t rows);
  // A row for reading, or for writing, which unshares its block. For stores without codes or with scales per
  // row.
  const std::byte* row(std::int64_t index) const;
  std::byte* mutable_row(std::int64_t index);
  // Reads or overwrites one head of a row [num_heads, head_dim]; codes have scales per row.
  void read_head(std::int64_t row, std::int64_t head, float* to) const;
  void write_head(std::int64_t row, std::int64_t head, const float* from);

  // A contiguous copy, [count, shape...] in `dtype`.
  at::Tensor rows(std::int64_t first, std::int64_t count, at::ScalarType dtype) const;
  at::Tensor rows(at::ScalarType dtype) const { return rows(0, num_rows_, dtype); }
  at::Tensor rows(const std::vector<RowRun>& runs,
                  at::ScalarType dtype) const;  // one after the other
  std::int64_t block_rows() const { return page(); }
  // The kernels' view of the rows; valid until the store changes.
  KvRows table() const;

 private:
  std::int64_t page() const { return blocks_.pool().page_tokens(); }
  std::int64_t bytes_of(std::int64_t rows) const;
  at::Tensor empty_rows(std::int64_t count, at::ScalarType dtype) const;
  at::Tensor stored(const at::Tensor& rows) const;
  // The intermediate dtype of rows that are read as `dtype`.
  at::ScalarType read_type(at::ScalarType dtype) const {
    return has_codes() ? dtype : format_.dtype;
  }
  void read(std::int64_t first, std::int64_t count, at::ScalarType type, std::byte* to) const;
  void write(std::int64_t first, const at::Tensor& rows);
  void write_codes(std::int64_t first, const at::Tensor& rows);
  void resize(std::int64_t rows);

  RowFormat format_;
  std::int64_t width_ = 0, head_dim_ = 0;  // numbers of a row and of its last axis
  std::int64_t row_bytes_ = 0;             // 0: rows share scales
  std::int64_t num_rows_ = 0, reserved_rows_ = 0;
  BlockList blocks_;
};

// For several stores together.
template <typename Store>
std::int64_t bytes_of(const std::vector<Store>& stores) {
  std::int64_t bytes = 0;
  for (const Store& store : stores) {
    bytes += store.bytes();
  }
  return bytes;
}

}  // namespace kvc
