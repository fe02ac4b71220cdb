#include "runtime/gpu/row_coding.h"

#include "core/arithmetic.h"
#include "runtime/gpu/gpu_cache.h"
#include "runtime/kernels/cuda/quantise_rows.h"

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

void code_head_rows(const at::Tensor& rows, KvDtype dtype, const at::Tensor& codes,
                    StepExecutor& executor) {
  const at::Tensor from = rows.contiguous();
  const auto count = static_cast<int>(from.size(0) * from.size(1));
  // One block of all rows.
  const at::Tensor block = at::full({1}, reinterpret_cast<std::int64_t>(codes.data_ptr()),
                                    codes.options().dtype(at::kLong));
  executor.run(
      {QuantiseRows{.from = from.const_data_ptr(),
                    .from_element = device_element(from.scalar_type()),
                    .to = {.blocks = reinterpret_cast<const void* const*>(block.data_ptr()),
                           .max_blocks = 1,
                           .block_rows = static_cast<int>(round_up(count, kScaledRows)),
                           .width = static_cast<int>(from.size(2)),
                           .element = code_element(dtype)},
                    .num_sequences = 1,
                    .count = count}});
}

DeviceElement code_element(KvDtype dtype) {
  return dtype == KvDtype::kInt8 ? DeviceElement::kInt8 : DeviceElement::kInt4;
}

at::Tensor raw_keys(const GpuModel& model, int layer, const at::Tensor& key, std::int64_t first) {
  return model.unrotate(layer, key, first).to(model.dtype);
}

}  // namespace kvc
