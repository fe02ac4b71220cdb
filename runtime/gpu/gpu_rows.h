// Rows of one width of each sequence of a batch, in pages of GPU memory whose addresses kernels find in a table there.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/kernels/cuda/device_rows.h"

namespace kvc {

// Of all pages, as they come and go.
struct GpuPageBytes {
  std::int64_t now = 0, peak = 0;

  void add(std::int64_t bytes) {
    now += bytes;
    peak = now > peak ? now : peak;
  }
};

// Where the rows of a batch lie, and how many a sequence may have.
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

  // Pages for so many rows; those that are there stay where they are. New pages are zeros: their ends take part in
  // products, with weights of zero.
  void reserve(std::size_t sequence, std::int64_t rows);
  // The same for rows `first` .. `first` + `rows` - 1 of a sequence that has none; those before get no pages.
  void reserve_from(std::size_t sequence, std::int64_t first, std::int64_t rows);
  // The same for any `rows` rows that follow one another, however far on: row i lies where row i - n does, n being `rows` in
  // whole pages.
  void reserve_ring(std::size_t sequence, std::int64_t rows);
  // The sequence's rows become these, in pages for `capacity` rows.
  void replace(std::size_t sequence, const at::Tensor& rows, std::int64_t capacity);
  // Sequence `to` has what `from` has.
  void copy(std::size_t from, std::size_t to);
  // The sequence may have so many rows, if it may not already: the table gets another address where it is too narrow.
  void allow(std::int64_t rows);
  // Rows `first` .. of any type that casts to the store's; float16 saturates. [n, ..., width in all]
  void write(std::size_t sequence, std::int64_t first, const at::Tensor& rows);
  // [count, width]: the memory itself where it is in one piece, or a copy.
  at::Tensor read(std::size_t sequence, std::int64_t first, std::int64_t count) const;
  // The same, [count, heads, head_dim].
  at::Tensor read_heads(std::size_t sequence, std::int64_t first, std::int64_t count,
                        std::int64_t head_dim) const {
    return read(sequence, first, count).view({count, -1, head_dim});
  }
  // All pages of codes. [num_pages, bytes of a page] uint8
  at::Tensor read_pages(std::size_t sequence) const;

  std::int64_t capacity(std::size_t sequence) const;  // rows of its pages
  std::int64_t bytes(std::size_t sequence) const;     // of them
  std::int64_t width() const { return width_; }
  // For kernels: of 16-bit numbers, or of others that they know (row_of_words of device_rows.h). The table's address
  // holds until allow(), what is in it until pages come or go.
  DeviceRows table() const;
  // Of one sequence, as if it were alone.
  DeviceRows table(std::size_t sequence) const;

 private:
  struct Extent {
    at::Tensor rows;  // [whole pages' rows, width], or of codes [pages, bytes of a page]
    std::int64_t first = 0, count = 0;
    bool is_ring = false;
  };
  // Memory of some of the rows asked for, from the one at `offset` among them on.
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

}  // namespace kvc
