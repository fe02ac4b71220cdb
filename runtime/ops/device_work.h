// What an op launches on a GPU, with scratch memory from torch.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>

#include "runtime/ops/device_queue.h"
#include "runtime/ops/tensor_checks.h"

namespace kvc {

inline int device_of(const Tensor& tensor) {
  return std::max(0, static_cast<int>(tensor.get_device_index()));
}

inline void queue_program(const DeviceProgram& program, const Tensor& of_device) {
  const LaunchError error = queue_launches(program, device_of(of_device));
  STD_TORCH_CHECK(error.empty(), "kvconvert: ", error);
}

inline Tensor scratch_of(const Tensor& of_device, std::int64_t bytes) {
  return torch::stable::new_empty(of_device, {std::max<std::int64_t>(1, bytes)}, ScalarType::Byte);
}

// Queues program(scratch).
template <class Program>
void queue_whole(const Tensor& of_device, const Program& program) {
  DeviceScratch counted(nullptr);
  program(counted);
  const Tensor bytes = scratch_of(of_device, counted.bytes());
  DeviceScratch scratch(bytes.data_ptr());
  queue_program(program(scratch), of_device);
}

// Queues program(first, count, scratch) for all of `total` queries. Where the longest sequence is much longer than the others,
// scratch memory for all at once would be long, too: as many go together as need no more than most_scratch bytes, or one.
template <class Program>
void queue_in_parts(int total, std::int64_t most_scratch, const Tensor& of_device,
                    const Program& program) {
  const auto bytes_of = [&](int count) {
    DeviceScratch counted(nullptr);
    program(0, count, counted);
    return counted.bytes();
  };
  int together = total;
  std::int64_t needed = bytes_of(together);
  while (together > 1 && needed > most_scratch) {
    together = (together + 1) / 2;
    needed = bytes_of(together);
  }
  if (const int last = total % together; last > 0) {
    needed = std::max(needed, bytes_of(last));
  }
  const Tensor bytes = scratch_of(of_device, needed);
  for (int first = 0; first < total; first += together) {
    DeviceScratch scratch(bytes.data_ptr());
    queue_program(program(first, std::min(together, total - first), scratch), of_device);
  }
}

}  // namespace kvc
