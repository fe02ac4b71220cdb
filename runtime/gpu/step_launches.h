// The launches that steps repeat.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "model/config.h"
#include "model/weights.h"
#include "runtime/gpu/gpu_cache.h"
#include "runtime/gpu/step_state.h"
#include "runtime/kernels/cuda/step_program.h"

namespace kvc {

inline int narrow_size(std::int64_t size) { return static_cast<int>(size); }

class StepLaunches {
 public:
  StepLaunches(const ModelConfig& config, at::ScalarType dtype, at::Device device,
               std::int64_t num_sequences, const StepMemory& step_memory)
      : memory(step_memory),
        config_(config),
        device_(device),
        element_(device_element(dtype)),
        num_sequences_(num_sequences) {}

  at::Tensor keep(const at::Tensor& tensor) {
    constants.push_back(tensor);
    return tensor;
  }
  // As float32 on the device, or null where there is none.
  const float* numbers(const at::Tensor& tensor) {
    return tensor.defined()
               ? keep(tensor.to(device_, at::kFloat).contiguous()).const_data_ptr<float>()
               : nullptr;
  }
  template <class T>
  T* pointer(const at::Tensor& tensor) const {
    return tensor.defined() ? static_cast<T*>(tensor.data_ptr()) : nullptr;
  }

  void add(const KernelLaunch& launch) { program.push_back(launch); }

  // Attention over all of these, to memory.attended; some of them become one, where a launch takes fewer.
  void add_combination(std::vector<DevicePartials> sources) {
    while (sources.size() > CombinePartials::kMaxSources) {
      const auto first = sources.end() - CombinePartials::kMaxSources;
      const DevicePartials joined = join({first, sources.end()});
      sources.erase(first, sources.end());
      sources.push_back(joined);
    }
    CombinePartials all = combination(sources);
    all.output = memory.attended.data_ptr();
    all.element = element_;
    add(all);
  }

  // At most kMostFewRows rows a launch.
  void add_product(const FewRowsProduct& all) {
    for (std::int64_t first = 0; first < num_sequences_; first += kMostFewRows) {
      FewRowsProduct part = all;
      const auto behind = [&](auto* pointer, std::int64_t width, std::int64_t bytes) {
        using T = std::remove_pointer_t<decltype(pointer)>;
        using Byte = std::conditional_t<std::is_const_v<T>, const std::uint8_t, std::uint8_t>;
        return pointer == nullptr
                   ? pointer
                   : reinterpret_cast<T*>(reinterpret_cast<Byte*>(pointer) + first * width * bytes);
      };
      part.element = element_;
      part.num_rows = narrow_size(std::min<std::int64_t>(kMostFewRows, num_sequences_ - first));
      part.x = behind(all.x, all.in, 2);
      part.residual = behind(all.residual, all.out, 4);
      part.output = behind(all.output, all.out, 2);
      part.output_float = behind(all.output_float, all.out, 4);
      add(part);
    }
  }
  FewRowsProduct product_of(const Linear& linear, const at::Tensor& x) {
    return {.x = x.data_ptr(),
            .in = narrow_size(x.size(1)),
            .out = narrow_size(linear.weight.size(0)),
            .weight = linear.weight.data_ptr(),
            .scales = pointer<void>(linear.scales),
            .bias = numbers(linear.bias)};
  }

  // 16-bit rows of what is in memory.hidden, normed where there is a norm.
  void add_norm(const Norm& norm) {
    add(NormRows{.x = pointer<float>(memory.hidden),
                 .num_rows = narrow_size(num_sequences_),
                 .width = narrow_size(config_.hidden_size),
                 .weight = numbers(norm.weight),
                 .bias = numbers(norm.bias),
                 .epsilon = static_cast<float>(norm.eps),
                 .output = memory.normed.data_ptr(),
                 .element = element_});
  }
  // memory.hidden += a product, through a norm where there is one.
  void add_to_residual(const Linear& linear, const at::Tensor& x, const Norm& norm) {
    const auto scale = static_cast<float>(config_.residual_scale);
    FewRowsProduct product = product_of(linear, x);
    if (!norm.defined()) {
      product.scale = scale;
      product.residual = pointer<float>(memory.hidden);
      return add_product(product);
    }
    product.output_float = pointer<float>(memory.added);
    add_product(product);
    add(NormRows{.x = pointer<float>(memory.added),
                 .num_rows = narrow_size(num_sequences_),
                 .width = narrow_size(config_.hidden_size),
                 .weight = numbers(norm.weight),
                 .bias = numbers(norm.bias),
                 .epsilon = static_cast<float>(norm.eps),
                 .residual = pointer<float>(memory.hidden),
                 .residual_scale = scale});
  }

  StepProgram program;
  std::vector<at::Tensor> constants;  // what it points to and nobody else holds
  const StepMemory& memory;

 private:
  CombinePartials combination(const std::vector<DevicePartials>& sources) const {
    CombinePartials combine;
    std::copy(sources.begin(), sources.end(), combine.sources);
    combine.num_sources = narrow_size(static_cast<std::int64_t>(sources.size()));
    combine.num_sequences = narrow_size(num_sequences_);
    combine.num_heads = narrow_size(config_.num_heads);
    combine.width = narrow_size(config_.head_dim);
    return combine;
  }
  DevicePartials join(const std::vector<DevicePartials>& sources) {
    const at::TensorOptions floats = at::TensorOptions(at::kFloat).device(device_);
    const auto zeros = [&](at::IntArrayRef sizes) {
      return pointer<float>(keep(at::zeros(sizes, floats)));
    };
    CombinePartials part = combination(sources);
    part.log_sum = zeros({num_sequences_, config_.num_heads});
    part.output_float = zeros({num_sequences_, config_.num_heads, config_.head_dim});
    add(part);
    return {part.log_sum, nullptr, part.output_float, 1};
  }

  const ModelConfig& config_;
  at::Device device_;
  DeviceElement element_;
  std::int64_t num_sequences_;
};

}  // namespace kvc
