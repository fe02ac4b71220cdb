#include "export/held_source.h"

#include <utility>

#include "core/mapped_file.h"
#include "model/weights.h"

namespace kvc {

void Held::release() {
  computed = at::Tensor();
  if (!mapped.empty()) {
    release_pages(mapped);
  }
  mapped = {};
}

TensorSource computed_source(std::string name, at::ScalarType dtype,
                             std::vector<std::int64_t> shape, std::shared_ptr<Held> held,
                             std::function<at::Tensor()> compute) {
  return {std::move(name), dtype_of(dtype), std::move(shape),
          [held = std::move(held), compute = std::move(compute)] {
            held->release();
            held->computed = compute().contiguous();
            return std::span(static_cast<const std::byte*>(held->computed.const_data_ptr()),
                             held->computed.nbytes());
          }};
}

}  // namespace kvc
