#include "model/linear.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>

#include "core/error.h"
#include "model/row_products.h"

namespace kvc {
namespace {

constexpr std::int64_t kMinRows = 16;  // below, preparing the product costs more than it saves

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
  return onednn_linear()->call(x.contiguous(), weight.contiguous(), bias, "none",
                               c10::List<std::optional<at::Scalar>>(), std::nullopt);
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

}  // namespace

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
