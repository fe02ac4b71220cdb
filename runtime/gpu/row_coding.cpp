#include "runtime/gpu/row_coding.h"

#include "runtime/gpu/gpu_cache.h"

namespace kvc {

void code_rows(const at::Tensor& key, const at::Tensor& value, const CodeRows& to,
               const std::int32_t* first_row, StepExecutor& executor) {
  const at::Tensor keys = key.contiguous(), values = value.contiguous();
  const auto launch = [&](const at::Tensor& from, const DeviceRows& rows) {
    return QuantiseRows{.from = from.const_data_ptr(),
                        .from_element = device_element(from.scalar_type()),
                        .to = rows,
                        .first_rows = first_row,
                        .num_sequences = 1,
                        .count = static_cast<int>(from.size(0))};
  };
  executor.run({launch(keys, to.key), launch(values, to.value)});
}

at::Tensor raw_keys(const GpuModel& model, int layer, const at::Tensor& key, std::int64_t first) {
  return model.rope.unrotate(layer, key, at::arange(first, first + key.size(0), at::kLong))
      .to(model.dtype);
}

}  // namespace kvc
