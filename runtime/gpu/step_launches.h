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
#include "runtime/gpu/gpu_model.h"
#include "runtime/gpu/step_executor.h"
#include "runtime/gpu/step_state.h"
#include "runtime/kernels/cuda/step_program.h"

namespace kvc {

inline int narrow_size(std::int64_t size) { return static_cast<int>(size); }

class StepLaunches {
 public:
  // step_capacity: tokens that the longest sequence may have. All outlive it.
  StepLaunches(const GpuModel& of_model, const GpuCache& of_cache, const StepState& step_state,
               const StepMemory& step_memory, std::int64_t step_capacity,
               const StepExecutor& step_executor)
      : model(of_model),
        config(of_model.config),
        cache(of_cache),
        state(step_state),
        memory(step_memory),
        executor(step_executor),
        element(device_element(of_model.dtype)),
        num_sequences(of_cache.num_sequences()),
        capacity(step_capacity) {}

  at::Tensor keep(const at::Tensor& tensor) {
    constants.push_back(tensor);
    return tensor;
  }
  at::Tensor zeros(at::IntArrayRef sizes, at::ScalarType dtype) {
    return keep(at::zeros(sizes, at::TensorOptions(dtype).device(executor.device())));
  }
  // Partial softmaxes of `parts` of every sequence's tokens, of outputs of `width` numbers.
  DevicePartials partials(int parts, std::int64_t width) {
    const auto numbers_of = [&](at::IntArrayRef sizes) {
      return pointer<float>(zeros(sizes, at::kFloat));
    };
    return {numbers_of({num_sequences, parts, config.num_heads}),
            numbers_of({num_sequences, parts, config.num_heads}),
            numbers_of({num_sequences, parts, config.num_heads, width}), parts};
  }
  // As float32 on the device, or null where there is none.
  const float* numbers(const at::Tensor& tensor) {
    return tensor.defined()
               ? keep(tensor.to(executor.device(), at::kFloat).contiguous()).const_data_ptr<float>()
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
    all.element = element;
    add(all);
  }

  // At most kMostFewRows rows a launch.
  void add_product(const FewRowsProduct& all) {
    for (std::int64_t first = 0; first < num_sequences; first += kMostFewRows) {
      FewRowsProduct part = all;
      const auto behind = [&](auto* pointer, std::int64_t width, std::int64_t bytes) {
        using T = std::remove_pointer_t<decltype(pointer)>;
        using Byte = std::conditional_t<std::is_const_v<T>, const std::uint8_t, std::uint8_t>;
        return pointer == nullptr
                   ? pointer
                   : reinterpret_cast<T*>(reinterpret_cast<Byte*>(pointer) + first * width * bytes);
      };
      part.element = element;
      part.num_rows = narrow_size(std::min<std::int64_t>(kMostFewRows, num_sequences - first));
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
    NormRows normed = norm_of(memory.hidden, norm);
    normed.output = memory.normed.data_ptr();
    normed.element = element;
    add(normed);
  }
  // memory.hidden += a product, through a norm where there is one.
  void add_to_residual(const Linear& linear, const at::Tensor& x, const Norm& norm) {
    const auto scale = static_cast<float>(config.residual_scale);
    FewRowsProduct product = product_of(linear, x);
    if (!norm.defined()) {
      product.scale = scale;
      product.residual = pointer<float>(memory.hidden);
      return add_product(product);
    }
    product.output_float = pointer<float>(memory.added);
    add_product(product);
    NormRows normed = norm_of(memory.added, norm);
    normed.residual = pointer<float>(memory.hidden);
    normed.residual_scale = scale;
    add(normed);
  }

  StepProgram program;
  std::vector<at::Tensor> constants;  // what it points to and nobody else holds

  const GpuModel& model;
  const ModelConfig& config;
  const GpuCache& cache;
  const StepState& state;
  const StepMemory& memory;
  const StepExecutor& executor;
  const DeviceElement element;
  const std::int64_t num_sequences, capacity;

 private:
  NormRows norm_of(const at::Tensor& x, const Norm& norm) {
    return {.x = pointer<float>(x),
            .num_rows = narrow_size(num_sequences),
            .width = narrow_size(config.hidden_size),
            .weight = numbers(norm.weight),
            .bias = numbers(norm.bias),
            .epsilon = static_cast<float>(norm.eps)};
  }
  CombinePartials combination(const std::vector<DevicePartials>& sources) const {
    CombinePartials combine;
    std::copy(sources.begin(), sources.end(), combine.sources);
    combine.num_sources = narrow_size(static_cast<std::int64_t>(sources.size()));
    combine.num_sequences = narrow_size(num_sequences);
    combine.num_heads = narrow_size(config.num_heads);
    combine.width = narrow_size(config.head_dim);
    return combine;
  }
  DevicePartials join(const std::vector<DevicePartials>& sources) {
    CombinePartials part = combination(sources);
    part.log_sum = pointer<float>(zeros({num_sequences, config.num_heads}, at::kFloat));
    part.output_float =
        pointer<float>(zeros({num_sequences, config.num_heads, config.head_dim}, at::kFloat));
    add(part);
    return {part.log_sum, nullptr, part.output_float, 1};
  }
};

}  // namespace kvc
