#include "runtime/store/token_column.h"

namespace kvc {

at::Tensor TokenColumn::tensor(at::ScalarType dtype) const {
  return at::cat({compressed.rows(compressed.dtype()), exact.rows(exact.dtype())}).to(dtype);
}

void TokenColumn::assign(const at::Tensor& of_compressed, const at::Tensor& of_exact) {
  compressed.truncate(0);
  compressed.append(of_compressed);
  exact.truncate(0);
  exact.append(of_exact);
}

void TokenColumn::move(std::int64_t first, std::int64_t count) {
  compressed.append(exact.rows(first, count, exact.dtype()));
  exact.erase(first, count);
}

}  // namespace kvc
