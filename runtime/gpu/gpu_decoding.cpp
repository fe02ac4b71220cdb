#include "runtime/gpu/gpu_decoding.h"

#include <vector>

namespace kvc {
namespace {

// Halves of bytes as kv_rows.h says. [.., width / 2] -> [.., width]
at::Tensor unpack_int4(const at::Tensor& bytes) {
  std::vector<std::int64_t> shape = bytes.sizes().vec();
  shape.back() *= 2;
  const at::Tensor groups = bytes.unflatten(-1, {-1, kScaledChannels / 2});
  return at::cat({groups.bitwise_and(15), groups.bitwise_right_shift(4)}, -1).reshape(shape);
}

// Bytes [.., 2 n] as float16.
at::Tensor halves(const at::Tensor& bytes) {
  return bytes.contiguous().view(at::kHalf).to(at::kFloat);
}

// A plane's parts of codes: [.., 4 bits] bytes -> [.., 32].
at::Tensor plane_parts(const at::Tensor& bytes, int bits) {
  const at::Tensor shifts =
      at::arange(0, 8, bits, at::TensorOptions(at::kByte).device(bytes.device()));
  return bytes.unsqueeze(-1).bitwise_right_shift(shifts).bitwise_and((1 << bits) - 1).flatten(-2);
}

// Codes of `bits` bits, [.., 4 bits] bytes -> [.., 32].
at::Tensor unpack_codes(const at::Tensor& bytes, int bits) {
  at::Tensor codes;
  std::int64_t byte = 0;
  int left = bits;
  for (const int plane : {8, 4, 2, 1}) {
    if ((bits & plane) != 0) {
      left -= plane;
      const std::int64_t count = plane * kTileTokens / 8;
      const at::Tensor part =
          plane_parts(bytes.narrow(-1, byte, count), plane).bitwise_left_shift(left);
      codes = codes.defined() ? codes.bitwise_or(part) : part;
      byte += count;
    }
  }
  return codes;
}

}  // namespace

at::Tensor integer_rows(const GpuRows& codes, std::size_t sequence, std::int64_t first,
                        std::int64_t count) {
  const DeviceRows table = codes.table();
  const bool is_int4 = table.element == DeviceElement::kInt4;
  const std::int64_t width = codes.width(), code_bytes = channel_bytes(table.element, table.width);
  const at::Tensor pages = codes.read_pages(sequence);
  const auto numbers = [&](const at::Tensor& bytes) {
    return (is_int4 ? unpack_int4(bytes) : bytes).to(at::kFloat);
  };
  if (table.per_channel) {
    const std::int64_t code_size = kScaledRows * code_bytes;
    const at::Tensor groups =
        pages.view({-1, code_size + 4 * width}).narrow(0, first / kScaledRows, count / kScaledRows);
    const at::Tensor rows = groups.narrow(1, 0, code_size).unflatten(1, {kScaledRows, code_bytes}),
                     scale = halves(groups.narrow(1, code_size, 2 * width)),
                     minimum = halves(groups.narrow(1, code_size + 2 * width, 2 * width));
    return (minimum.unsqueeze(1) + scale.unsqueeze(1) * numbers(rows)).flatten(0, 1);
  }
  const std::int64_t scaled = width / kScaledChannels;
  const at::Tensor rows = pages.view({-1, code_bytes + 4 * scaled}).narrow(0, first, count);
  const at::Tensor scales = halves(rows.narrow(1, code_bytes, 4 * scaled)).view({-1, scaled, 2});
  const at::Tensor by_scale =
      numbers(rows.narrow(1, 0, code_bytes)).view({-1, scaled, kScaledChannels});
  return (scales.narrow(2, 1, 1) + scales.narrow(2, 0, 1) * by_scale).flatten(1);
}

at::Tensor tile_levels(const TileLayout& layout, const at::Tensor& tiles) {
  const std::int64_t count = tiles.size(0);
  std::vector<at::Tensor> parts{
      at::zeros({count, 0, kTileTokens}, tiles.options().dtype(at::kFloat))};
  std::int64_t byte = 0;
  for (int bits = kWidestCode; bits >= 1; --bits) {
    const std::int64_t of_width = layout.coefficients[bits],
                       size = of_width * bits * kTileTokens / 8;
    if (of_width > 0) {
      const at::Tensor codes =
          unpack_codes(tiles.narrow(1, byte, size).reshape({count, of_width, -1}), bits);
      parts.push_back(codes.to(at::kFloat) + first_level(bits));
    }
    byte += size;
  }
  at::Tensor levels = at::cat(parts, 1);
  if (layout.gain) {
    const at::Tensor gains = at::tensor(at::ArrayRef<float>(kGains), tiles.device());
    const at::Tensor chosen =
        tiles.narrow(1, layout.code_bytes(), kTileTokens).clamp_max(kNumGains - 1).to(at::kLong);
    levels = levels * gains.index_select(0, chosen.flatten()).view({count, 1, kTileTokens});
  }
  return levels.transpose(1, 2).reshape({count * kTileTokens, levels.size(1)});
}

DecodedTokens decode_gpu_tokens(const GpuModel& model, const GpuCache& cache, int layer,
                                std::size_t sequence, std::int64_t first, std::int64_t count) {
  const KvPlan& plan = cache.plan();
  if (plan.layers[static_cast<std::size_t>(layer)] == KvSource::kPlain) {
    const auto rows = [&](const GpuRows& codes) {
      return integer_rows(codes, sequence, first, count)
          .view({count, plan.num_kv_heads, plan.head_dim});
    };
    return {rows(cache.stored_key_codes(layer)), rows(cache.stored_value_codes(layer))};
  }
  const GpuTiles& tiles = cache.tiles_of(layer);
  const auto store = static_cast<std::size_t>(&tiles - cache.tiles().data());
  std::vector<at::Tensor> levels;
  for (std::size_t block = 0; block < static_cast<std::size_t>(tiles.layers.num_blocks); ++block) {
    levels.push_back(
        tile_levels(tiles.layout(block),
                    tiles.read(block, sequence, first / kTileTokens, count / kTileTokens)));
  }
  const auto index = static_cast<std::size_t>(layer - tiles.layers.first_layer);
  return model.coded[store].layers[index].decode(levels);
}

}  // namespace kvc
