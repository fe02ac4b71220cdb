#include "model/compute_place.h"

#include <c10/core/GradMode.h>

#include "core/error.h"
#include "model/tensor_memory.h"

namespace kvc {
namespace {

// N of "cuda:N", 0 of "cuda".
int gpu_index(const std::string& name) {
  KVC_CHECK_USAGE(name == "cuda" || (name.rfind("cuda:", 0) == 0 && name.size() > 5 &&
                                     name.find_first_not_of("0123456789", 5) == std::string::npos &&
                                     name.size() < 9),
                  "--device {}: expected auto, cpu, cuda or cuda:N", name);
  return name.size() > 5 ? std::stoi(name.substr(5)) : 0;
}

}  // namespace

bool names_gpu(const std::string& name) {
  return name != "cpu" && name != "auto" && gpu_index(name) >= 0;
}

at::Device compute_device(const std::string& name) {
  if (!names_gpu(name)) {
    return at::kCPU;
  }
  const int index = gpu_index(name);
#ifdef KVC_CUDA
  set_up_cuda(index);
  return {at::kCUDA, static_cast<c10::DeviceIndex>(index)};
#else
  fail(
      "--device cuda:{}: this build has no GPU support; configure with `cmake --preset cuda` "
      "(needs "
      "a CUDA toolkit), or use --device cpu",
      index);
#endif
}

ComputePlace statistics_place(at::Device device) {
  return {device, device.is_cpu() ? at::kFloat : at::kBFloat16};
}

ComputePlace statistics_place(const std::string& device) {
  return statistics_place(compute_device(device));
}

std::string compute_dtype_name(const ComputePlace& place) {
  return place.dtype == at::kFloat ? "float32" : "bfloat16";
}

void wait_for_stream([[maybe_unused]] at::Device device) {
#ifdef KVC_CUDA
  if (device.is_cuda()) {
    wait_for_cuda_stream(device);
  }
#endif
}

at::Tensor make_pass_tensor(const std::vector<std::int64_t>& shape, at::ScalarType dtype,
                            [[maybe_unused]] const ComputePlace& place,
                            const std::filesystem::path& directory, std::int64_t memory_bytes) {
#ifdef KVC_CUDA
  constexpr std::int64_t kShare = 4;
  const auto bytes =
      c10::multiply_integers(shape) * static_cast<std::int64_t>(c10::elementSize(dtype));
  if (place.device.is_cuda() && bytes <= free_cuda_bytes(place.device) / kShare) {
    return at::empty(shape, at::TensorOptions(dtype).device(place.device));
  }
#endif
  return make_scratch_tensor(shape, dtype, directory, memory_bytes);
}

void on_own_stream([[maybe_unused]] at::Device device, const std::function<void()>& work) {
  const c10::NoGradGuard no_grad;
#ifdef KVC_CUDA
  if (device.is_cuda()) {
    return on_cuda_stream(device, work);
  }
#endif
  work();
}

}  // namespace kvc
