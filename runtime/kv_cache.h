// The KV cache of one sequence: per plain layer a store of keys and values, per latent group a store of
// latents. Memory comes from one allocator that counts what is really committed.
#pragma once

#include <ATen/ATen.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/checkpoint.h"
#include "core/kv_plan.h"
#include "model/decoder.h"

namespace kvc {

// Counts committed bytes of all KV buffers of an engine.
class KvAllocator {
 public:
  explicit KvAllocator(std::int64_t page_tokens) : page_tokens_(page_tokens) {}
  std::int64_t page_tokens() const { return page_tokens_; }
  std::int64_t allocated_bytes() const { return allocated_; }
  std::int64_t peak_bytes() const { return peak_; }

 private:
  friend class KvBuffer;
  void change(std::int64_t bytes);
  std::int64_t page_tokens_;
  std::int64_t allocated_ = 0, peak_ = 0;
};

// Rows of one fixed shape, contiguous, growing and shrinking in pages of tokens without being copied:
// address space is reserved once and committed page by page.
class KvBuffer {
 public:
  // row_shape e.g. {num_kv_heads, head_dim} or {rank}; max_rows bounds the reservation, not memory.
  KvBuffer(std::shared_ptr<KvAllocator> allocator, std::vector<std::int64_t> row_shape,
           at::ScalarType dtype, std::int64_t max_rows);
  ~KvBuffer();
  KvBuffer(KvBuffer&&) noexcept;
  KvBuffer& operator=(KvBuffer&&) noexcept;

  std::int64_t num_rows() const { return num_rows_; }
  at::Tensor rows() const;              // view [num_rows, row_shape...]
  void append(const at::Tensor& rows);  // cast to the buffer's dtype
  // Keeps the rows `indices` (ascending int64), in order, and returns memory behind them.
  void keep(const at::Tensor& indices);
  std::int64_t committed_bytes() const;

 private:
  void resize(std::int64_t rows);
  std::shared_ptr<KvAllocator> allocator_;
  std::vector<std::int64_t> row_shape_;
  at::ScalarType dtype_ = at::kFloat;
  std::int64_t row_bytes_ = 0, max_rows_ = 0, num_rows_ = 0, committed_rows_ = 0;
  void* base_ = nullptr;
};

// The tensors of a plan's latent groups, loaded once per engine.
struct LatentFactors;
std::shared_ptr<const LatentFactors> load_latent_factors(const Checkpoint& checkpoint,
                                                         const KvPlan& plan, std::int64_t hidden_size,
                                                         at::ScalarType dtype);

class KvCache;

}  // namespace kvc
