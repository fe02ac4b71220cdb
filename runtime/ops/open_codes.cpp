#include "runtime/ops/open_codes.h"

#include <algorithm>

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

PagedBlock block_of(const std::int64_t* numbers, const Tensor* tensors,
                    const PagedCodes::Shape& shape, std::int64_t first_head) {
  PagedBlock block;
  block.num_layers = shape.num_layers;
  block.head_dim = shape.head_dim;
  const bool whole = numbers[0] < 0;
  block.num_heads = whole ? shape.num_kv_heads : 1;
  block.first_head = whole ? 0 : numbers[0] - first_head;
  block.parts = static_cast<CodedParts>(numbers[1]);
  block.bases.count = numbers[2];
  block.bases.rotated = numbers[3] != 0;
  block.layout.gain = numbers[4] != 0;
  std::copy_n(numbers + 5, kWidestCode + 1, block.layout.coefficients);
  block.layout.coefficients[0] = 0;
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
  const std::int64_t positions = cos.size(0);
  CodesDescription all{.shape = {.num_layers = shape[0],
                                 .num_heads = shape[1],
                                 .num_kv_heads = shape[2],
                                 .head_dim = shape[3],
                                 .scale = floats(scale, 1, "scale")[0],
                                 .softcap = floats(scale, 1, "scale")[1],
                                 .window = shape[5],
                                 .rope = rope_angles(cos, sin, shape[3]),
                                 .num_positions = positions}};
  for (std::size_t i = 0; i * kBlockNumbers < blocks.size(); ++i) {
    all.blocks.push_back(block_of(blocks.data() + i * kBlockNumbers,
                                  factors.data() + i * kBlockTensors, all.shape, shape[4]));
  }
  for (const PagedBlock& block : all.blocks) {
    STD_TORCH_CHECK(
        block.first_head >= 0 && block.first_head + block.num_heads <= all.shape.num_kv_heads,
        "kvconvert: open: a block of KV heads that there are none of");
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
