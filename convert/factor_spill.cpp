#include "convert/factor_spill.h"

#include <fmt/format.h>

#include "model/tensor_memory.h"
#include "model/weights.h"

namespace kvc {

void FactorSpill::add(const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  add(fmt::format("kvconvert.groups.{}.", num_groups_++), tensors);
}

void FactorSpill::add(const std::string& prefix,
                      const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  constexpr std::int64_t kInMemory = std::int64_t{1} << 16;
  for (const auto& [name, tensor] : tensors) {
    const std::vector<std::int64_t> shape = tensor.sizes().vec();
    const at::Tensor waiting =
        make_scratch_tensor(shape, tensor.scalar_type(), directory_, kInMemory).copy_(tensor);
    sources_.push_back({prefix + name, dtype_of(tensor.scalar_type()), shape, [waiting] {
                          return std::span(static_cast<const std::byte*>(waiting.const_data_ptr()),
                                           waiting.nbytes());
                        }});
  }
}

void FactorSpill::write() {
  write_safetensors(directory_ / "conversion.safetensors", std::move(sources_));
}

}  // namespace kvc
