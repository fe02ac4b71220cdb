#include "tests/testing/tensor_matchers.h"

#include <cmath>
#include <cstring>
#include <sstream>

namespace kvc::testing {
namespace {

std::string index_text(std::int64_t flat, at::IntArrayRef shape) {
  std::string text;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    text.insert(0, std::to_string(flat % shape[axis]) + (text.empty() ? "" : ", "));
    flat /= shape[axis];
  }
  return "[" + text + "]";
}

::testing::AssertionResult shapes_differ(const at::Tensor& actual, const at::Tensor& expected) {
  std::ostringstream text;
  text << "shape " << actual.sizes() << ", expected " << expected.sizes();
  return ::testing::AssertionFailure() << text.str();
}

}  // namespace

::testing::AssertionResult tensors_close(const at::Tensor& actual, const at::Tensor& expected,
                                         double tolerance) {
  if (actual.sizes() != expected.sizes()) {
    return shapes_differ(actual, expected);
  }
  if (actual.numel() == 0) {
    return ::testing::AssertionSuccess();
  }
  const at::Tensor found = actual.to(at::kDouble).flatten();
  const at::Tensor wanted = expected.to(at::kDouble).flatten();
  const at::Tensor error =
      at::where(found == wanted, at::zeros_like(found), (found - wanted).abs());
  const at::Tensor ranked = at::where(error.isnan(), at::full_like(error, INFINITY), error);
  const auto worst = ranked.argmax().item<std::int64_t>();
  const double worst_error = ranked[worst].item<double>();
  if (worst_error <= tolerance) {
    return ::testing::AssertionSuccess();
  }
  const auto misses = ranked.gt(tolerance).sum().item<std::int64_t>();
  return ::testing::AssertionFailure()
         << "worst at " << index_text(worst, actual.sizes()) << ": " << found[worst].item<double>()
         << ", expected " << wanted[worst].item<double>() << ", error " << worst_error << " > "
         << tolerance << "; " << misses << " of " << actual.numel() << " elements miss";
}

::testing::AssertionResult tensors_identical(const at::Tensor& actual, const at::Tensor& expected) {
  if (actual.scalar_type() != expected.scalar_type()) {
    return ::testing::AssertionFailure() << "type " << c10::toString(actual.scalar_type())
                                         << ", expected " << c10::toString(expected.scalar_type());
  }
  if (actual.sizes() != expected.sizes()) {
    return shapes_differ(actual, expected);
  }
  const at::Tensor a = actual.contiguous(), b = expected.contiguous();
  if (a.numel() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0) {
    return ::testing::AssertionSuccess();
  }
  const auto close = tensors_close(actual, expected, 0);
  return close ? ::testing::AssertionFailure() << "equal values, different bits" : close;
}

double spread(const at::Tensor& values) { return (values.max() - values.min()).item<double>(); }

}  // namespace kvc::testing
