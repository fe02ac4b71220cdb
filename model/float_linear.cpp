#include "model/linear.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "model/fused_ops.h"
#include "model/kernels/weight_product.h"
#include "model/parallel.h"
#include "model/row_products.h"

namespace kvc {
namespace {

constexpr std::int64_t kMinRows = 16;  // below, preparing the product costs more than it saves
// In float32: so few that they stay in a cache.
constexpr std::int64_t kWidenedWeights = std::int64_t{1} << 20;
constexpr std::int64_t kWidenedRows = 512;

using LinearOperator = at::Tensor(const at::Tensor&, const at::Tensor&,
                                  const std::optional<at::Tensor>&, std::string_view,
                                  c10::List<std::optional<at::Scalar>>,
                                  std::optional<std::string_view>);

// LibTorch's own operator over oneDNN; absent from builds without oneDNN.
const std::optional<c10::TypedOperatorHandle<LinearOperator>>& onednn_linear() {
  static const auto found = [] {
    std::optional<c10::TypedOperatorHandle<LinearOperator>> typed;
    const auto handle = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
    if (handle) {
      typed = handle->typed<LinearOperator>();
    }
    return typed;
  }();
  return found;
}

at::Tensor product(const at::Tensor& x, const at::Tensor& weight,
                   const std::optional<at::Tensor>& bias) {
  // Without AVX-512 oneDNN divides a sum among threads, so that results depend on their number.
  std::optional<AllThreads> threads;
  if (!has_fast_products(at::kBFloat16)) {
    threads.emplace();
  }
  return onednn_linear()->call(x.contiguous(), weight.contiguous(), bias, "none",
                               c10::List<std::optional<at::Scalar>>(), std::nullopt);
}

// As many rows at a time as few rows are.
at::Tensor multiply_in_turns(const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& bias) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& rows : x.split(kMaxProductRows)) {
    parts.push_back(multiply_few_rows(rows, weight, bias));
  }
  return at::cat(parts);
}

// Rows of the weight that are widened at a time.
std::int64_t widened_outputs(std::int64_t in, std::int64_t out) {
  return std::max<std::int64_t>(1, std::min(kWidenedWeights / in, out));
}

// A part of the weight after another, with some rows at a time, so that little memory is taken beside them.
at::Tensor multiply_in_float32(const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& bias) {
  const AllThreads threads;  // once for all parts
  at::Tensor y = at::empty({x.size(0), weight.size(0)}, x.options());
  const std::int64_t outputs = widened_outputs(weight.size(1), weight.size(0));
  for (std::int64_t first = 0; first < weight.size(0); first += outputs) {
    const std::int64_t count = std::min(outputs, weight.size(0) - first);
    const auto part_of = [&](const at::Tensor& tensor) {
      return tensor.narrow(0, first, count).to(at::kFloat);
    };
    const at::Tensor part = part_of(weight);
    const auto of_bias = bias.defined() ? std::optional(part_of(bias)) : std::nullopt;
    for (std::int64_t row = 0; row < x.size(0); row += kWidenedRows) {
      const std::int64_t rows = std::min(kWidenedRows, x.size(0) - row);
      y.narrow(0, row, rows)
          .narrow(1, first, count)
          .copy_(product(x.narrow(0, row, rows).to(at::kFloat), part, of_bias));
    }
  }
  return y;
}

class Product : public torch::autograd::Function<Product> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight) {
    context->save_for_backward({weight});
    const at::NoGradGuard no_grad;
    return product(x, weight, std::nullopt);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const at::Tensor weight = context->get_saved_variables().front();
    return {product(gradients.front(), weight.t(), std::nullopt), at::Tensor()};
  }
};

bool covers(const at::Tensor& x, const at::Tensor& weight) {
  return x.scalar_type() == at::kFloat && weight.scalar_type() == at::kFloat &&
         x.device().is_cpu() && x.dim() == 2 && x.size(0) >= kMinRows && !weight.requires_grad() &&
         onednn_linear().has_value();
}

// Whether LibTorch multiplies rows of 16 bits slowly.
bool is_slow(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return x.is_cpu() && x.dim() == 2 && x.size(0) > 0 && x.size(1) > 0 && weight.dim() == 2 &&
         weight.scalar_type() == x.scalar_type() && !wants_gradient(x) && !wants_gradient(weight) &&
         (!bias.defined() || !wants_gradient(bias)) && !has_fast_products(x.scalar_type());
}

// What oneDNN says of this processor's instructions.
bool onednn_supports(const char* question) {
  const auto handle = c10::Dispatcher::singleton().findSchema({question, ""});
  return handle && handle->typed<bool()>().call();
}

}  // namespace

bool has_fast_products(at::ScalarType type) {
  static const bool bfloat16 = onednn_supports("mkldnn::_is_mkldnn_bf16_supported");
  static const bool float16 = onednn_supports("mkldnn::_is_mkldnn_fp16_supported");
  return !onednn_linear() || (type != at::kBFloat16 && type != at::kHalf) ||
         (type == at::kBFloat16 ? bfloat16 : float16);
}

std::int64_t widened_product_bytes(std::int64_t num_rows, std::int64_t in, std::int64_t out) {
  const std::int64_t outputs = widened_outputs(in, out), rows = std::min(num_rows, kWidenedRows);
  return (outputs * in + rows * (in + outputs)) * static_cast<std::int64_t>(sizeof(float));
}

at::Tensor float_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  KVC_CHECK(x.size(-1) == weight.size(-1), "{} channels do not go with a weight of {}", x.size(-1),
            weight.size(-1));
  KVC_CHECK(x.device() == weight.device(), "rows on {} do not go with a weight on {}",
            x.device().str(), weight.device().str());
  if (can_multiply_few_rows(x, weight, bias)) {
    return multiply_few_rows(x, weight, bias);
  }
  if (can_multiply_bfloat16(x, weight, bias)) {
    return multiply_bfloat16(x, weight, bias);
  }
  if (is_slow(x, weight, bias)) {
    return x.size(0) < kMinRows && can_multiply_few_rows(x.narrow(0, 0, 1), weight, bias)
               ? multiply_in_turns(x, weight, bias)
               : multiply_in_float32(x, weight, bias);
  }
  if (!covers(x, weight)) {
    return at::linear(x, weight, bias.defined() ? std::optional(bias) : std::nullopt);
  }
  if (x.requires_grad() && at::GradMode::is_enabled()) {
    const at::Tensor y = Product::apply(x, weight);
    return bias.defined() ? y + bias : y;
  }
  return product(x, weight, bias.defined() ? std::optional(bias) : std::nullopt);
}

}  // namespace kvc
