#include "runtime/ops/open_codes.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "runtime/ops/handles.h"
#include "runtime/ops/tensor_checks.h"

namespace kvc {
namespace {

constexpr std::size_t kBlockNumbers = 6 + kWidestCode;  // that describe a block
constexpr std::size_t kBlockTensors = 6;

Handles<OpenCodes>& registry() {
  static Handles<OpenCodes> all("codes");
  return all;
}

// Sizes are products of three of them.
constexpr std::int64_t kMostOfAnything = std::int64_t{1} << 20;

void check_shape(const PagedCodes::Shape& shape) {
  const std::int64_t sizes[] = {shape.num_layers, shape.num_heads, shape.num_kv_heads,
                                shape.head_dim};
  const bool fits = std::all_of(std::begin(sizes), std::end(sizes), [](std::int64_t size) {
    return size >= 1 && size <= kMostOfAnything;
  });
  STD_TORCH_CHECK(fits && shape.num_heads % shape.num_kv_heads == 0 && shape.window >= 0,
                  "kvconvert: open: ", shape.num_layers, " layers of ", shape.num_heads,
                  " heads on ", shape.num_kv_heads, " KV heads of ", shape.head_dim,
                  " channels, with a window of ", shape.window,
                  ": expected positive numbers, as many heads on each KV head, and a window of at "
                  "least 0");
}

void check_counts(const PagedBlock& block) {
  const bool apart =
      block.parts == CodedParts::kKeys && block.num_heads == 1 && block.num_layers == 1;
  const std::int64_t bases = block.bases.count, pairs = block.head_dim / 2;
  STD_TORCH_CHECK(bases == 1 || (apart && bases > 1 && pairs % bases == 0),
                  "kvconvert: open: ", bases,
                  " bases, expected 1, or for the keys of one KV head a ", "divisor of its ", pairs,
                  " pairs of channels");
  STD_TORCH_CHECK(!block.bases.rotated || bases == pairs, "kvconvert: open: rotated keys in ",
                  bases, " bases, expected ", pairs);
  const auto* counts = block.layout.coefficients;
  STD_TORCH_CHECK(std::all_of(counts, counts + kWidestCode + 1,
                              [&](auto count) { return count >= 0 && count <= block.channels(); }),
                  "kvconvert: open: a block of ", block.channels(),
                  " channels with fewer than 0 coefficients of one width, or more than channels");
}

// The kernels of a pair of channels have room for two coefficients, and those of rotated keys read one channel of each.
void check_bases(const PagedBlock& block) {
  const std::int64_t n = block.channels(), k = block.layout.num_coefficients();
  std::vector<bool> found(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int32_t channel = block.bases.channels[i];
    STD_TORCH_CHECK(channel >= 0 && channel < n && !found[static_cast<std::size_t>(channel)],
                    "kvconvert: open: the bases' channels are not 0 to ", n - 1, ", each once");
    found[static_cast<std::size_t>(channel)] = true;
  }
  const std::int64_t of_basis = n / block.bases.count;
  std::vector<std::int64_t> in_basis(static_cast<std::size_t>(block.bases.count));
  for (std::int64_t c = 0; c < k; ++c) {
    std::int64_t channels = 0, basis = -1;
    for (std::int64_t i = 0; i < n; ++i) {
      if (block.decoder[block.bases.channels[i] * k + c] != 0) {
        STD_TORCH_CHECK(basis < 0 || basis == i / of_basis, "kvconvert: open: coefficient ", c,
                        " has channels of several bases");
        basis = i / of_basis;
        ++channels;
      }
    }
    STD_TORCH_CHECK(!block.bases.rotated || channels <= 1, "kvconvert: open: rotated coefficient ",
                    c, " has ", channels, " channels, expected one");
    STD_TORCH_CHECK(basis < 0 || ++in_basis[static_cast<std::size_t>(basis)] <= of_basis,
                    "kvconvert: open: a basis of ", of_basis, " channels has more coefficients");
  }
}

PagedBlock block_of(const std::int64_t* numbers, const Tensor* tensors,
                    const PagedCodes::Shape& shape, std::int64_t first_head) {
  PagedBlock block;
  block.num_layers = shape.num_layers;
  block.head_dim = shape.head_dim;
  const bool whole = numbers[0] < 0;
  block.num_heads = whole ? shape.num_kv_heads : 1;
  block.first_head = whole ? 0 : numbers[0] - first_head;
  STD_TORCH_CHECK(numbers[1] >= 0 && numbers[1] <= 2, "kvconvert: open: part ", numbers[1],
                  ", expected 0 (both), 1 (keys) or 2 (values)");
  block.parts = static_cast<CodedParts>(numbers[1]);
  block.bases.count = numbers[2];
  block.bases.rotated = numbers[3] != 0;
  block.layout.gain = numbers[4] != 0;
  std::copy_n(numbers + 5, kWidestCode + 1, block.layout.coefficients);
  block.layout.coefficients[0] = 0;
  check_counts(block);
  const std::int64_t n = block.channels(), k = block.layout.num_coefficients();
  block.encoder = floats(tensors[0], 2, "encoder");
  block.decoder = floats(tensors[1], 2, "decoder");
  block.mean = floats(tensors[2], 1, "mean");
  block.steps = floats(tensors[3], 1, "steps");
  STD_TORCH_CHECK(tensors[0].size(0) == k && tensors[0].size(1) == n && tensors[1].size(0) == n &&
                      tensors[1].size(1) == k && tensors[2].size(0) == n && tensors[3].size(0) == k,
                  "kvconvert: factors of a block of ", n, " channels and ", k,
                  " coefficients have other shapes");
  if (block.bases.count > 1) {
    block.bases.channels =
        kvc::numbers<std::int32_t>(tensors[4], ScalarType::Int, 1, "channels of bases");
    STD_TORCH_CHECK(tensors[4].size(0) == n, "kvconvert: channels of bases: expected ", n);
    check_bases(block);
  }
  if (tensors[5].numel() > 0) {
    block.first = floats(tensors[5], 1, "first");
    STD_TORCH_CHECK(tensors[5].size(0) == n, "kvconvert: first: expected ", n);
  }
  return block;
}

}  // namespace

CodesDescription describe_codes(const std::vector<std::int64_t>& shape, const Tensor& scale,
                                const Tensor& cos, const Tensor& sin,
                                const std::vector<std::int64_t>& blocks,
                                const std::vector<Tensor>& factors) {
  STD_TORCH_CHECK(shape.size() == 6 && blocks.size() % kBlockNumbers == 0 && !blocks.empty() &&
                      factors.size() == blocks.size() / kBlockNumbers * kBlockTensors,
                  "kvconvert: open: a description of another length");
  const float* scores = floats(scale, 1, "scale");
  STD_TORCH_CHECK(scale.size(0) == 2,
                  "kvconvert: scale: expected the scale and the softcap, found ", scale.size(0),
                  " numbers");
  const RopeAngles rope = rope_angles(cos, sin, shape[3]);
  CodesDescription all{.shape = {.num_layers = shape[0],
                                 .num_heads = shape[1],
                                 .num_kv_heads = shape[2],
                                 .head_dim = shape[3],
                                 .scale = scores[0],
                                 .softcap = scores[1],
                                 .window = shape[5],
                                 .rope = rope,
                                 .num_positions = cos.size(0)}};
  check_shape(all.shape);
  for (std::size_t i = 0; i * kBlockNumbers < blocks.size(); ++i) {
    all.blocks.push_back(block_of(blocks.data() + i * kBlockNumbers,
                                  factors.data() + i * kBlockTensors, all.shape, shape[4]));
  }
  for (const PagedBlock& block : all.blocks) {
    STD_TORCH_CHECK(
        block.first_head >= 0 && block.first_head + block.num_heads <= all.shape.num_kv_heads,
        "kvconvert: open: a block of KV heads that there are none of");
    STD_TORCH_CHECK(
        (block.first == nullptr) == (all.blocks.front().first == nullptr),
        "kvconvert: open: a first token's mean in some blocks, expected in all or none");
  }
  STD_TORCH_CHECK(PagedCodes::is_complete(all.blocks, all.shape.num_kv_heads),
                  "kvconvert: open: a KV head whose keys or values no block has, or several have");
  return all;
}

std::int64_t open_codes(const std::vector<std::int64_t>& shape, const Tensor& scale,
                        const Tensor& cos, const Tensor& sin,
                        const std::vector<std::int64_t>& blocks,
                        const std::vector<Tensor>& factors) {
  const CodesDescription described = describe_codes(shape, scale, cos, sin, blocks, factors);
  const auto opened = std::make_shared<OpenCodes>();
  opened->cos = cos;
  opened->sin = sin;
  opened->codes.emplace(described.shape, described.blocks);
  return registry().add(opened);
}

void close_codes(std::int64_t handle) { registry().remove(handle); }

std::shared_ptr<const OpenCodes> find_codes(std::int64_t handle) { return registry().find(handle); }

}  // namespace kvc
