#include "export/factor_sources.h"

#include <functional>
#include <utility>

#include "model/tensor_memory.h"
#include "model/weights.h"

namespace kvc {
namespace {

TensorSource code_source(const FactorFile& factors, const TensorInfo& code) {
  return {code.name, code.dtype, code.shape, [&factors, &code] { return factors.bytes(code); }};
}

// A tensor that is computed early, because what is written needs all types first; it waits on disk.
TensorSource waiting_source(const std::string& name, const at::Tensor& tensor,
                            const std::filesystem::path& scratch, std::shared_ptr<Held> held) {
  constexpr std::int64_t kInMemory = std::int64_t{1} << 16;
  const std::vector<std::int64_t> shape = tensor.sizes().vec();
  const at::Tensor waiting =
      make_scratch_tensor(shape, tensor.scalar_type(), scratch, kInMemory).copy_(tensor);
  return computed_source(name, tensor.scalar_type(), shape, std::move(held),
                         [waiting] { return waiting; });
}

// A matrix in 8 bits, `wide` of its coefficients in 16.
std::vector<TensorSource> coefficient_sources(const FactorFile& factors,
                                              const FactorFile::Stored& factor, std::int64_t wide,
                                              const std::filesystem::path& scratch,
                                              const std::shared_ptr<Held>& held) {
  const std::string& name = factor.tensor.name;
  const CoefficientCodes codes =
      code_coefficients(factors.load(name, at::kFloat), factor.axis, wide);
  std::vector<TensorSource> sources = {
      waiting_source(name, codes.codes, scratch, held),
      waiting_source(scale_name(name), codes.scale, scratch, held)};
  if (codes.low.defined()) {
    sources.push_back(waiting_source(low_name(name), codes.low, scratch, held));
  }
  return sources;
}

}  // namespace

std::vector<TensorSource> factor_sources(const FactorFile& factors,
                                         const FactorFile::Stored& factor,
                                         const std::string& factor_dtype,
                                         const std::filesystem::path& scratch,
                                         const std::shared_ptr<Held>& held) {
  const bool automatic = chooses_factor_type(factor_dtype),
             integers = is_integer_factor_type(factor_dtype);
  const TensorInfo& info = factor.tensor;
  if (factor.is_code) {
    return {code_source(factors, info)};
  }
  if ((automatic && factor.wide) || (integers && factor.axis != CoefficientAxis::kNone)) {
    return coefficient_sources(factors, factor, automatic ? *factor.wide : 0, scratch, held);
  }
  const auto source = [&](at::ScalarType dtype, std::function<at::Tensor()> load) {
    return std::vector{computed_source(info.name, dtype, info.shape, held, std::move(load))};
  };
  const auto load = [&factors, name = info.name](at::ScalarType dtype) {
    return [&factors, name, dtype] { return factors.load(name, dtype); };
  };
  if (!automatic && !integers && info.shape.size() > 1) {
    const at::ScalarType dtype = parse_scalar_type(factor_dtype);
    return source(dtype, load(dtype));
  }
  if (!automatic || info.shape.size() != 2) {
    return source(at::kFloat, load(at::kFloat));
  }
  return {waiting_source(info.name, to_half_or_float(factors.load(info.name, at::kFloat)), scratch,
                         held)};
}

}  // namespace kvc
