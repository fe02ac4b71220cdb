#include "model/basis_codes.h"

#include "core/error.h"
#include "model/coefficient_codes.h"

namespace kvc {
namespace {

constexpr const char* kDecoder = "decoder_codes";

// In coordinates divided by the channels' scales. [n, columns] float64
at::Tensor columns_of(const BasisCodes& codes) {
  return decode_coefficients({codes.decoder, codes.decoder_low, codes.decoder_scale},
                             CoefficientAxis::kColumns, at::kDouble);
}

// Channels of small metric have small rows in E and large ones in F; divided by this both are alike.
at::Tensor balance(const BasisTransform& transform) {
  const at::Tensor ratio = (transform.decoder.norm(2, 1) / transform.encoder.norm(2, 0)).sqrt();
  const at::Tensor usable = ratio.isfinite().logical_and(ratio > 0);
  return at::where(usable, ratio, at::ones_like(ratio)).to(at::kFloat);
}

// F and an orthonormal basis of what E maps to zero.
at::Tensor completed(const at::Tensor& encoder, const at::Tensor& decoder) {
  const std::int64_t k = decoder.size(1);
  const at::Tensor q = std::get<0>(at::linalg_qr(encoder.t(), "complete"));
  return at::cat({decoder, q.narrow(1, k, q.size(1) - k)}, 1);
}

// As the table says, whatever the file does.
at::Tensor load_code(const Checkpoint& checkpoint, const std::string& name,
                     const BasisCodeSpec& spec) {
  return spec.dtype == Dtype::kF32 ? read_scales(checkpoint, name, spec.shape)
                                   : read_codes(checkpoint, name, spec.shape);
}

bool stores_encoder(std::int64_t channels, std::int64_t coefficients) {
  return 2 * coefficients < channels;
}

// For a shape that has all of them.
std::vector<BasisCodeSpec> all_code_specs() { return basis_code_specs(3, 1); }

}  // namespace

std::vector<BasisCodeSpec> basis_code_specs(std::int64_t channels, std::int64_t coefficients) {
  const bool pair = stores_encoder(channels, coefficients);
  const std::int64_t columns = pair ? coefficients : channels;
  std::vector<BasisCodeSpec> specs = {
      {kDecoder, {channels, columns}, Dtype::kI8, &BasisCodes::decoder},
      {"decoder_scale", {columns}, Dtype::kF32, &BasisCodes::decoder_scale},
      {"channel_scale", {channels}, Dtype::kF32, &BasisCodes::channel_scale},
      {"decoder_low", {channels, kAnySize}, Dtype::kI8, &BasisCodes::decoder_low}};
  if (pair) {
    specs.push_back({"encoder_codes", {coefficients, channels}, Dtype::kI8, &BasisCodes::encoder});
  }
  return specs;
}

std::vector<std::pair<std::string, at::Tensor>> BasisCodes::named() const {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const BasisCodeSpec& spec : all_code_specs()) {
    if ((this->*spec.tensor).defined()) {
      tensors.emplace_back(spec.name, this->*spec.tensor);
    }
  }
  return tensors;
}

std::int64_t basis_code_bytes(std::int64_t channels, std::int64_t coefficients,
                              std::int64_t wide_columns) {
  std::int64_t bytes = 0;
  for (const BasisCodeSpec& spec : basis_code_specs(channels, coefficients)) {
    std::int64_t size = bits_per_element(spec.dtype) / 8;
    for (const std::int64_t axis : spec.shape) {
      size *= axis == kAnySize ? wide_columns : axis;
    }
    bytes += size;
  }
  return bytes;
}

BalancedBasis balanced_basis(const BasisTransform& transform) {
  const BasisTransform exact{transform.encoder.to(at::kDouble), transform.decoder.to(at::kDouble)};
  const at::Tensor channel_scale = balance(exact), scale = channel_scale.to(at::kDouble);
  const at::Tensor encoder = exact.encoder * scale;
  const at::Tensor decoder = exact.decoder / scale.unsqueeze(1);
  const bool pair = stores_encoder(encoder.size(1), encoder.size(0));
  return {channel_scale, pair ? encoder : at::Tensor(),
          pair ? decoder : completed(encoder, decoder)};
}

BasisCodes code_basis(const BalancedBasis& basis, std::int64_t wide_columns) {
  const CoefficientCodes columns =
      code_coefficients(basis.columns, CoefficientAxis::kColumns, wide_columns);
  BasisCodes codes;
  codes.channel_scale = basis.channel_scale;
  codes.decoder = columns.codes;
  codes.decoder_low = columns.low;
  codes.decoder_scale = columns.scale;
  if (basis.encoder.defined()) {
    codes.encoder = code_coefficients(basis.encoder, CoefficientAxis::kRows, 0).codes;
  }
  return codes;
}

BasisTransform decode_basis(const BasisCodes& codes, std::int64_t coefficients,
                            const std::string& name) {
  const at::Tensor scale = codes.channel_scale.to(at::kDouble);
  const at::Tensor columns = columns_of(codes);
  at::Tensor inverse, info;
  if (codes.encoder.defined()) {
    const at::Tensor encoder = codes.encoder.to(at::kDouble);
    std::tie(inverse, info) = at::linalg_solve_ex(at::mm(encoder, columns), encoder);
  } else {
    std::tie(inverse, info) = at::linalg_inv_ex(columns);
  }
  BasisTransform transform{(inverse.narrow(0, 0, coefficients) / scale).contiguous(),
                           (columns.narrow(1, 0, coefficients) * scale.unsqueeze(1)).contiguous()};
  KVC_CHECK(info.item<std::int32_t>() == 0 && transform.encoder.isfinite().all().item<bool>(),
            "{}: the stored basis has no inverse; export again", name);
  return transform;
}

std::string basis_code_name(const std::string& prefix) { return prefix + kDecoder; }

BasisCodes load_basis_codes(const Checkpoint& checkpoint, const std::string& prefix,
                            std::int64_t channels, std::int64_t coefficients) {
  BasisCodes codes;
  for (BasisCodeSpec& spec : basis_code_specs(channels, coefficients)) {
    const std::string name = prefix + spec.name;
    if (spec.shape.back() == kAnySize) {
      if (!checkpoint.contains(name)) {
        continue;
      }
      const std::vector<std::int64_t>& shape = checkpoint.info(name).shape;
      KVC_CHECK(shape.size() == spec.shape.size(), "{}: {} dimensions, expected {}; export again",
                name, shape.size(), spec.shape.size());
      const std::int64_t wide = spec.shape.back() = shape.back();
      KVC_CHECK(wide <= coefficients, "{}: {} columns, expected at most {}; export again", name,
                wide, coefficients);
    }
    codes.*spec.tensor = load_code(checkpoint, name, spec);
  }
  return codes;
}

}  // namespace kvc
