#include "runtime/gpu/coded_key_rows.h"

#include "model/tensor_memory.h"
#include "runtime/kernels/key_pair_rows.h"

namespace kvc {
namespace {

KeyRowTensors to_tensors(const KeyPairRows& rows, at::Device device) {
  const std::vector<std::int64_t> shape{rows.num_heads, 2, rows.count};
  return {at::tensor(rows.channels, at::kInt).view(shape).to(device),
          at::tensor(rows.angles, at::kInt).view({rows.num_heads, rows.count}).to(device),
          at::tensor(rows.weights, at::kFloat).view(shape).to(device)};
}

}  // namespace

GpuKeyRows::GpuKeyRows(const std::vector<const CodedKeyRows*>& heads, const ChannelPairs& pairs,
                       at::Device device)
    : turned_(heads.front()->form() == KeyForm::kPairs) {
  const std::vector<ChannelPair> of_pairs =
      channel_pairs_of(heads.front()->head_dim(), pairs.num_turned);
  codes_ = to_tensors(code_pair_rows(heads, of_pairs), device);
  means_ = to_tensors(mean_pair_rows(heads, of_pairs), device);
  std::vector<float> mean;
  for (const CodedKeyRows* keys : heads) {
    for (std::int64_t d = 0; d < keys->head_dim(); ++d) {
      mean.push_back(keys->mean(d));
    }
  }
  mean_ = at::tensor(mean).view({static_cast<std::int64_t>(heads.size()), -1}).to(device);
}

KeyRows KeyRowTensors::device() const {
  return {.count = static_cast<int>(angles.size(1)),
          .channels = channels.const_data_ptr<std::int32_t>(),
          .weights = weights.const_data_ptr<float>(),
          .angles = angles.const_data_ptr<std::int32_t>()};
}

CodedAttention GpuKeyRows::attention() const {
  CodedAttention attention;
  attention.turned = turned_;
  attention.codes = codes_.device();
  attention.means = means_.device();
  return attention;
}

at::Tensor GpuKeyRows::decode(const std::vector<at::Tensor>& levels,
                              const TurnKeys& turn_back) const {
  const std::int64_t heads = mean_.size(0), head_dim = mean_.size(1), count = codes_.angles.size(1);
  // What a coefficient adds to a head's channels. [num_kv_heads, count, head_dim]
  at::Tensor decoder = at::zeros({heads, count, head_dim}, mean_.options());
  for (int i = 0; i < 2; ++i) {
    decoder.scatter_add_(2, codes_.channels.select(1, i).unsqueeze(2).to(at::kLong),
                         codes_.weights.select(1, i).unsqueeze(2));
  }
  std::vector<at::Tensor> keys;
  for (std::size_t head = 0; head < levels.size(); ++head) {
    const at::Tensor own = decoder[static_cast<std::int64_t>(head)];
    keys.push_back(at::mm(levels[head], own.narrow(0, 0, levels[head].size(1))));
  }
  const at::Tensor all = at::stack(keys, 1);
  return (turned_ ? all : turn_back(all)).add(mean_);
}

std::int64_t KeyRowTensors::bytes() const {
  return tensor_bytes(channels) + tensor_bytes(angles) + tensor_bytes(weights);
}

std::int64_t GpuKeyRows::bytes() const {
  return tensor_bytes(mean_) + codes_.bytes() + means_.bytes();
}

}  // namespace kvc
