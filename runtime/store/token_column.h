// One number per token of layers that keep the same tokens: position or score.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>

#include "runtime/store/row_store.h"

namespace kvc {

// Rows in the order of keys and values: compressed tokens, then exact ones.
struct TokenColumn {
  TokenColumn(std::shared_ptr<KvPool> pool, at::ScalarType dtype)
      : compressed(pool, {.shape = {}, .dtype = dtype}), exact(compressed) {}

  RowStore compressed, exact;

  at::Tensor tensor(at::ScalarType dtype) const;  // [rows]
  void assign(const at::Tensor& of_compressed, const at::Tensor& of_exact);
  void move(std::int64_t first, std::int64_t count);  // exact rows become the last compressed ones
  std::int64_t bytes() const { return compressed.bytes() + exact.bytes(); }
};

}  // namespace kvc
