#include "model/basis_codes.h"

#include <cstring>

#include "core/error.h"
#include "core/mapped_file.h"
#include "model/weights.h"

namespace kvc {
namespace {

constexpr const char* kDecoder = "decoder_codes";
constexpr const char* kDecoderLow = "decoder_low";
constexpr const char* kDecoderScale = "decoder_scale";
constexpr const char* kChannelScale = "channel_scale";
constexpr const char* kEncoder = "encoder_codes";
constexpr double kLargestCode = 127;
constexpr double kLowCodes = 256;  // in one of the others

// What takes every row (axis 1) or column (axis 0) to at most the largest code. float32, with that axis
at::Tensor scale_of(const at::Tensor& matrix, std::int64_t axis) {
  const at::Tensor scale =
      (matrix.abs().amax(axis, /*keepdim=*/true) / kLargestCode).to(at::kFloat);
  return at::where(scale > 0, scale, at::ones_like(scale));
}

at::Tensor rounded(const at::Tensor& multiples) {
  return multiples.round().clamp(-kLargestCode, kLargestCode);
}

void set_decoder(const at::Tensor& columns, std::int64_t wide_columns, BasisCodes& codes) {
  const at::Tensor scale = scale_of(columns, 0), multiples = columns / scale;
  const at::Tensor high = rounded(multiples);
  if (wide_columns > 0) {
    const at::Tensor fine = (multiples.narrow(1, 0, wide_columns) * kLowCodes).round();
    const at::Tensor wide = high.narrow(1, 0, wide_columns);
    wide.copy_(((fine + kLowCodes / 2) / kLowCodes).floor().clamp_max(kLargestCode));
    codes.decoder_low =
        (fine - wide * kLowCodes).clamp(-kLargestCode, kLargestCode).to(at::kChar).contiguous();
  }
  codes.decoder = high.to(at::kChar).contiguous();
  codes.decoder_scale = scale.flatten();
}

// In coordinates divided by the channels' scales. [n, columns] float64
at::Tensor columns_of(const BasisCodes& codes) {
  const at::Tensor columns = codes.decoder.to(at::kDouble);
  if (codes.decoder_low.defined()) {
    columns.narrow(1, 0, codes.decoder_low.size(1))
        .add_(codes.decoder_low.to(at::kDouble), 1 / kLowCodes);
  }
  return columns * codes.decoder_scale;
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

at::Tensor load_codes(const Checkpoint& checkpoint, const std::string& name,
                      const std::vector<std::int64_t>& shape) {
  const TensorInfo& info = checkpoint.info(name, shape);
  KVC_CHECK(info.dtype == Dtype::kI8, "{}: stored as {}, expected I8; export again", name,
            dtype_name(info.dtype));
  at::Tensor codes = at::empty(shape, at::kChar);
  const auto bytes = checkpoint.bytes(name);
  std::memcpy(codes.data_ptr(), bytes.data(), bytes.size());
  release_pages(bytes);
  return codes;
}

at::Tensor load_scale(const Checkpoint& checkpoint, const std::string& name, std::int64_t count) {
  at::Tensor scale = load_tensor(checkpoint, name, {count}, at::kFloat);
  KVC_CHECK(scale.isfinite().logical_and(scale > 0).all().item<bool>(),
            "{}: a scale that is not positive and finite; export again", name);
  return scale;
}

}  // namespace

std::vector<std::pair<std::string, at::Tensor>> BasisCodes::named() const {
  std::vector<std::pair<std::string, at::Tensor>> tensors = {
      {kDecoder, decoder}, {kDecoderScale, decoder_scale}, {kChannelScale, channel_scale}};
  for (const auto& [name, tensor] : {std::pair(kDecoderLow, decoder_low), {kEncoder, encoder}}) {
    if (tensor.defined()) {
      tensors.emplace_back(name, tensor);
    }
  }
  return tensors;
}

bool stores_encoder(std::int64_t channels, std::int64_t coefficients) {
  return 2 * coefficients < channels;
}

std::int64_t decoder_columns(std::int64_t channels, std::int64_t coefficients) {
  return stores_encoder(channels, coefficients) ? coefficients : channels;
}

std::int64_t basis_code_bytes(std::int64_t channels, std::int64_t coefficients,
                              std::int64_t wide_columns) {
  constexpr std::int64_t kScaleBytes = 4;
  const std::int64_t columns = decoder_columns(channels, coefficients);
  const std::int64_t encoder_rows = stores_encoder(channels, coefficients) ? coefficients : 0;
  return channels * (columns + wide_columns + encoder_rows) + kScaleBytes * (channels + columns);
}

BasisCodes code_basis(const BasisTransform& transform, std::int64_t wide_columns) {
  const BasisTransform exact{transform.encoder.to(at::kDouble), transform.decoder.to(at::kDouble)};
  const std::int64_t k = exact.encoder.size(0), n = exact.encoder.size(1);
  BasisCodes codes;
  codes.channel_scale = balance(exact);
  const at::Tensor scale = codes.channel_scale.to(at::kDouble);
  const at::Tensor encoder = exact.encoder * scale;
  const at::Tensor decoder = exact.decoder / scale.unsqueeze(1);
  const bool pair = stores_encoder(n, k);
  set_decoder(pair ? decoder : completed(encoder, decoder), wide_columns, codes);
  if (pair) {
    codes.encoder = rounded(encoder / scale_of(encoder, 1)).to(at::kChar).contiguous();
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

bool is_basis_code(std::string_view name) {
  return name == kDecoder || name == kDecoderLow || name == kDecoderScale ||
         name == kChannelScale || name == kEncoder;
}

std::string basis_code_name(const std::string& prefix) { return prefix + kDecoder; }

BasisCodes load_basis_codes(const Checkpoint& checkpoint, const std::string& prefix,
                            std::int64_t channels, std::int64_t coefficients) {
  const std::int64_t columns = decoder_columns(channels, coefficients);
  BasisCodes codes;
  codes.decoder = load_codes(checkpoint, prefix + kDecoder, {channels, columns});
  if (const std::string low = prefix + kDecoderLow; checkpoint.contains(low)) {
    const std::int64_t wide = checkpoint.info(low).shape.back();
    KVC_CHECK(wide <= coefficients, "{}: {} columns, expected at most {}; export again", low, wide,
              coefficients);
    codes.decoder_low = load_codes(checkpoint, low, {channels, wide});
  }
  codes.decoder_scale = load_scale(checkpoint, prefix + kDecoderScale, columns);
  codes.channel_scale = load_scale(checkpoint, prefix + kChannelScale, channels);
  if (stores_encoder(channels, coefficients)) {
    codes.encoder = load_codes(checkpoint, prefix + kEncoder, {coefficients, channels});
  }
  return codes;
}

}  // namespace kvc
