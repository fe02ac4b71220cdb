// Memory of the KV cache: buffers that grow and shrink by pages of tokens, and the count of what
// they hold.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace kvc {

// Counts committed bytes of all KV buffers of an engine.
class KvAllocator {
 public:
  explicit KvAllocator(std::int64_t page_tokens);
  std::int64_t page_tokens() const { return page_tokens_; }
  std::int64_t allocated_bytes() const { return allocated_; }
  std::int64_t peak_bytes() const { return peak_; }

 private:
  friend class KvBuffer;
  void change(std::int64_t bytes);
  std::int64_t page_tokens_;
  std::int64_t allocated_ = 0, peak_ = 0;
};

// Rows of one fixed shape, contiguous, growing and shrinking in pages of tokens without being
// copied: address space is reserved once and committed page by page.
class KvBuffer {
 public:
  // row_shape e.g. {num_kv_heads, head_dim} or {rank}; max_rows bounds the reservation, not memory.
  KvBuffer(std::shared_ptr<KvAllocator> allocator, std::vector<std::int64_t> row_shape,
           at::ScalarType dtype, std::int64_t max_rows);
  ~KvBuffer();
  KvBuffer(KvBuffer&& other) noexcept;
  KvBuffer& operator=(KvBuffer&& other) noexcept;

  std::int64_t num_rows() const { return num_rows_; }
  // View [num_rows, row_shape...]; valid until the next append or erase.
  at::Tensor rows() const;
  // `rows` [n, row_shape...] of any floating type, cast to the buffer's dtype.
  void append(const at::Tensor& rows);
  // Removes rows first .. first + count - 1; later rows move down and freed pages return to the
  // system.
  void erase(std::int64_t first, std::int64_t count);
  // Bytes of the committed pages: rows rounded up to page_tokens.
  std::int64_t committed_bytes() const { return committed_rows_ * row_bytes_; }

 private:
  at::Tensor view(std::int64_t first, std::int64_t count) const;
  void resize(std::int64_t rows);
  void release();

  std::shared_ptr<KvAllocator> allocator_;
  std::vector<std::int64_t> row_shape_;
  at::ScalarType dtype_ = at::kFloat;
  std::int64_t row_bytes_ = 0, max_rows_ = 0, num_rows_ = 0, committed_rows_ = 0;
  std::size_t reserved_bytes_ = 0;
  std::byte* base_ = nullptr;
};

}  // namespace kvc
