#include "runtime/gpu/cuda_executor.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <thread>
#include <vector>

#include "core/error.h"
#include "model/compute_place.h"

namespace kvc {
namespace {

void require(cudaError_t status, const char* what) {
  KVC_CHECK(status == cudaSuccess, "--device cuda: {}: {}", what, cudaGetErrorString(status));
}
void require(const LaunchError& error) { KVC_CHECK(error.empty(), "--device cuda: {}", error); }

class CudaExecutor : public StepExecutor {
 public:
  explicit CudaExecutor(at::Device device)
      : device_(device),
        stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())) {
    c10::cuda::set_device(device.index());
    c10::cuda::setCurrentCUDAStream(stream_);
    for (cudaEvent_t& event : events_) {
      require(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event");
    }
  }
  ~CudaExecutor() override {
    (void)cudaStreamSynchronize(stream_.stream());
    for (cudaEvent_t event : events_) {
      (void)cudaEventDestroy(event);
    }
  }
  CudaExecutor(const CudaExecutor&) = delete;
  CudaExecutor& operator=(const CudaExecutor&) = delete;

  at::Device device() const override { return device_; }
  int multiprocessors() const override { return attribute(cudaDevAttrMultiProcessorCount); }
  // What cuBLAS may yet allocate is not free.
  std::int64_t free_bytes() const override {
    return std::max<std::int64_t>(0, free_cuda_bytes(device_) - kCublasWorkspaceBytes);
  }
  // An exception may leave launches behind that still write: memory is reused once these have ended.
  at::Tensor host_zeros(std::int64_t count) override {
    const auto is_unused = [](const at::Tensor& tensor) {
      return tensor.storage().use_count() == 1;  // views count
    };
    if (std::ranges::any_of(host_, is_unused)) {
      require(cudaStreamSynchronize(stream_.stream()), "step");
      std::erase_if(host_, is_unused);
    }
    return host_.emplace_back(at::zeros({count}, at::kInt).pin_memory());
  }

  void run(const StepProgram& program) override {
    check_stream();
    require(launch_cuda(program, stream_.stream()));
    note();
  }
  void prepare(const StepProgram& program) override {
    check_stream();
    require(graph_.capture(program, stream_.stream()));
  }
  void replay() override {
    check_stream();
    require(graph_.launch(stream_.stream()));
    note();
  }
  void wait(int under_way) override {
    if (count_ > under_way) {
      require(cudaEventSynchronize(events_[(count_ - 1 - under_way) % kEvents]), "step");
    }
  }

 private:
  static constexpr std::int64_t kEvents = 2;  // of the latest two runs

  // Torch's operators of the engine are queued on the thread's current stream, which launches have to follow.
  void check_stream() const {
    KVC_CHECK(std::this_thread::get_id() == thread_,
              "--device cuda: an engine runs on the thread that loaded it, and another one called; "
              "load one in each thread");
    KVC_CHECK(c10::cuda::getCurrentCUDAStream(device_.index()) == stream_,
              "--device cuda: the thread's current stream is not the engine's; load one engine in "
              "a thread, and restore the stream after changing it");
  }
  int attribute(cudaDeviceAttr which) const {
    int value = 0;
    require(cudaDeviceGetAttribute(&value, which, device_.index()), "device");
    return value;
  }
  void note() { require(cudaEventRecord(events_[count_++ % kEvents], stream_.stream()), "event"); }

  at::Device device_;
  c10::cuda::CUDAStream stream_;
  std::thread::id thread_ = std::this_thread::get_id();
  std::vector<at::Tensor> host_;  // pinned, which launches may write to
  StepGraph graph_;
  cudaEvent_t events_[kEvents] = {};
  std::int64_t count_ = 0;  // runs that were queued
};

}  // namespace

std::unique_ptr<StepExecutor> cuda_executor(at::Device device) {
  return std::make_unique<CudaExecutor>(device);
}

}  // namespace kvc
