#include <algorithm>

#include "model/parallel.h"
#include "model/tensor_memory.h"
#include "model/weights.h"

namespace kvc {
namespace {

constexpr std::int64_t kLeastStagedBytes = std::int64_t{1} << 22;
constexpr std::int64_t kPieceBytes = std::int64_t{1} << 25;

// Through pinned memory, from which a GPU copies several times as fast: all threads bring a piece there while the GPU takes the one
// before. LibTorch keeps a few such pieces and reuses each once its copy is done.
at::Tensor copy_staged(const at::Tensor& tensor, at::Device device) {
  const at::Tensor from = tensor.contiguous();
  at::Tensor to = at::empty(from.sizes(), from.options().device(device));
  const at::Tensor source = from.view({-1}).view(at::kByte), target = to.view({-1}).view(at::kByte);
  for (std::int64_t first = 0; first < source.numel(); first += kPieceBytes) {
    const std::int64_t bytes = std::min(kPieceBytes, source.numel() - first);
    const at::Tensor piece = at::empty({bytes}, source.options().pinned_memory(true));
    copy_in_parallel(piece.data_ptr(), source.const_data_ptr<std::uint8_t>() + first,
                     static_cast<std::size_t>(bytes));
    target.narrow(0, first, bytes).copy_(piece, /*non_blocking=*/true);
  }
  return to;
}

void move(at::Tensor& tensor, at::Device device) {
  if (!tensor.defined()) {
    return;
  }
  const bool is_staged =
      device.is_cuda() && tensor.device().is_cpu() && tensor_bytes(tensor) >= kLeastStagedBytes;
  tensor = is_staged ? copy_staged(tensor, device) : tensor.to(device);
}

void move(Linear& linear, at::Device device) {
  move(linear.weight, device);
  move(linear.bias, device);
  move(linear.scales, device);
}

void move(Norm& norm, at::Device device) {
  move(norm.weight, device);
  move(norm.bias, device);
}

template <class... Parts>
void move_all(at::Device device, Parts&... parts) {
  (move(parts, device), ...);
}

}  // namespace

LayerWeights to_device(LayerWeights weights, at::Device device) {
  move_all(device, weights.input_norm, weights.q_proj, weights.k_proj, weights.v_proj,
           weights.o_proj, weights.q_norm, weights.k_norm, weights.attention_output_norm,
           weights.mlp_norm, weights.gate_proj, weights.up_proj, weights.down_proj,
           weights.mlp_output_norm, weights.qkv_proj, weights.gate_up_proj);
  MlaWeights& mla = weights.mla;
  move_all(device, mla.q_a_proj, mla.q_a_norm, mla.q_proj, mla.kv_a_proj, mla.kv_a_norm,
           mla.kv_b_proj);
  MoeWeights& experts = weights.experts;
  move_all(device, experts.router, experts.gate_up, experts.down, experts.shared_gate_up,
           experts.shared_down, experts.shared_gate);
  return weights;
}

ModelWeights to_device(ModelWeights weights, at::Device device) {
  move_all(device, weights.embed_tokens, weights.norm, weights.lm_head);
  return weights;
}

}  // namespace kvc
