// Rows of one width of each sequence of a batch, in pages of GPU memory; kernels read their addresses from a table
// there.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/kernels/cuda/device_rows.h"

namespace kvc {

// Bytes of all pages.
struct GpuPageBytes {
  std::int64_t now = 0, peak = 0;

  void add(std::int64_t bytes) {
    now += bytes;
    peak = now > peak ? now : peak;
  }
};

// Memory of a batch's rows, and the capacity of a sequence.
struct GpuPages {
  at::Device device = at::kCPU;
  std::int64_t page_tokens = 0;           // rows of a page
  std::vector<std::int64_t> most_rows{};  // [num_sequences]
  std::shared_ptr<GpuPageBytes> bytes = std::make_shared<GpuPageBytes>();
};

class GpuRows {
 public:
  // `dtype`: of a row's `width` numbers.
  GpuRows(const GpuPages& pages, std::int64_t width, at::ScalarType dtype);
  // int8 or int4 codes with scales per channel of 32 rows, or per 32 channels of a row (runtime/kernels/kv_rows.h);
  // kernels write and read them.
  GpuRows(const GpuPages& pages, std::int64_t width, DeviceElement codes, bool per_channel);

  // Allocates pages for that many rows; existing ones stay. New pages are zeros: their ends take part in products,
  // with weights of zero.
  void reserve(std::size_t sequence, std::int64_t rows);
  // The same for rows `first` .. `first` + `rows` - 1 of a sequence without rows; earlier ones get no pages.
  void reserve_from(std::size_t sequence, std::int64_t first, std::int64_t rows);
  // The same for any `rows` consecutive rows: row i has the address of row i - n, where n is `rows` in whole pages.
  void reserve_ring(std::size_t sequence, std::int64_t rows);
  // Replaces the sequence's rows, in pages for `capacity` rows.
  void replace(std::size_t sequence, const at::Tensor& rows, std::int64_t capacity);
  // Copies sequence `from` to `to`.
  void copy(std::size_t from, std::size_t to);
  // Raises the capacity to that many rows; a table that is too narrow gets another address.
  void allow(std::int64_t rows);
  // Writes rows from `first` on, of any dtype that casts to the store's; float16 saturates. [n, ...,
  // width in all]
  void write(std::size_t sequence, std::int64_t first, const at::Tensor& rows);
  // [count, width]: the memory itself if contiguous, else a copy.
  at::Tensor read(std::size_t sequence, std::int64_t first, std::int64_t count) const;
  // The same, [count, heads, head_dim].
  at::Tensor read_heads(std::size_t sequence, std::int64_t first, std::int64_t count,
                        std::int64_t head_dim) const {
    return read(sequence, first, count).view({count, width_ / head_dim, head_dim});
  }

  std::int64_t capacity(std::size_t sequence) const;  // rows of its pages
  std::int64_t bytes(std::size_t sequence) const;     // of them
  std::int64_t width() const { return width_; }
  // For kernels: 16-bit numbers, or other types that they support (row_of_words of device_rows.h). The table's
  // address is valid until allow(), its contents until pages change.
  DeviceRows table() const;
  // For one sequence, as if it were alone.
  DeviceRows table(std::size_t sequence) const;
  // What it points to: int64 [num_sequences, pages of the longest] on the device.
  const at::Tensor& addresses() const { return table_; }

 private:
  struct Extent {
    at::Tensor rows;  // [whole pages' rows, width], or of codes [pages, bytes of a page]
    std::int64_t first = 0, count = 0;
    bool is_ring = false;
  };
  // Memory of some of the requested rows, from the one at `offset` on.
  struct Piece {
    at::Tensor rows;
    std::int64_t offset = 0;
  };
  std::vector<Piece> pieces(std::size_t sequence, std::int64_t first, std::int64_t count) const;
  GpuRows(const GpuPages& pages, std::int64_t width, at::ScalarType dtype, DeviceElement element,
          bool per_channel);
  std::int64_t page_bytes() const;
  std::int64_t whole_pages(std::int64_t rows) const;
  void add_extent(std::size_t sequence, std::int64_t first, std::int64_t count,
                  bool is_ring = false);
  void add_extent(std::size_t sequence, Extent extent);
  void count_gone(const std::vector<Extent>& extents);
  void write_table(std::size_t sequence);

  at::ScalarType dtype_;  // kByte: codes
  DeviceElement element_;
  bool per_channel_;
  at::Device device_;
  std::int64_t width_, page_tokens_, max_blocks_ = 1;
  std::shared_ptr<GpuPageBytes> page_count_;
  std::vector<std::vector<Extent>> extents_;  // of each sequence
  at::Tensor table_;  // [num_sequences, max_blocks] int64: addresses of pages
};

// The kernels' name of the dtype; Error unless bfloat16 or float16.
DeviceElement device_element(at::ScalarType dtype);

}  // namespace kvc
