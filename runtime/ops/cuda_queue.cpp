#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "runtime/ops/device_queue.h"

namespace kvc {
namespace {

// The library loads into torch without CUDA too, so its function is looked up when it is needed. Python loads torch's libraries
// without making their names global, so the library itself is asked.
using CurrentStream = std::int32_t (*)(std::int32_t device, void** stream);
CurrentStream current_stream() {
  static const auto function = [] {
    void* torch = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    return reinterpret_cast<CurrentStream>(
        dlsym(torch != nullptr ? torch : RTLD_DEFAULT, "aoti_torch_get_current_cuda_stream"));
  }();
  return function;
}

// The device for the calling thread while it lives.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    if (cudaGetDevice(&before_) != cudaSuccess || before_ != device) {
      (void)cudaSetDevice(device);
    }
  }
  ~OnDevice() { (void)cudaSetDevice(before_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
};

}  // namespace

int device_multiprocessors(int device) {
  int count = 0;
  return cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) == cudaSuccess
             ? count
             : 1;
}

LaunchError queue_launches(const DeviceProgram& program, int device) {
  void* stream = nullptr;
  if (current_stream() == nullptr || current_stream()(device, &stream) != 0) {
    return "torch has no CUDA stream; install a build of torch with CUDA";
  }
  const OnDevice on_device(device);
  for (const DeviceLaunch& launch : program) {
    if (LaunchError error =
            std::visit([&](const auto& params) { return launch_cuda(params, stream); }, launch);
        !error.empty()) {
      return error;
    }
  }
  return {};
}

}  // namespace kvc
