#include "runtime/gpu/coded_key_rows.h"

#include <algorithm>

#include "model/tensor_memory.h"

namespace kvc {
namespace {

// number * (a, b) in two channels.
struct PairRow {
  std::int32_t first = 0, second = 0, angle = -1;
  float a = 0, b = 0;
};
using PairRows = std::vector<PairRow>;

// Turned pairs have their angles, others none.
PairRows rows_of_pairs(const ChannelPairs& pairs) {
  PairRows rows;
  for (std::int64_t i = 0; i < pairs.first.size(0); ++i) {
    rows.push_back({pairs.first[i].item<std::int32_t>(), pairs.second[i].item<std::int32_t>(),
                    i < pairs.num_turned ? static_cast<std::int32_t>(i) : -1});
  }
  return rows;
}

// By coefficient.
PairRows code_rows_of(const CodedKeyRows& keys, const PairRows& pairs) {
  PairRows rows;
  const auto set = [&](std::int32_t coefficient, const PairRow& row) {
    rows.resize(std::max(rows.size(), static_cast<std::size_t>(coefficient) + 1));
    rows[static_cast<std::size_t>(coefficient)] = row;
  };
  for (const CodedKeyRows::RotatedWeight& weight : keys.rotated()) {
    set(weight.coefficient, {weight.channel, weight.channel, -1, weight.weight, 0});
  }
  for (const CodedKeyRows::Pair& pair : keys.pairs()) {
    const auto found = std::find_if(pairs.begin(), pairs.end(), [&](const PairRow& of) {
      return of.first == pair.channels[0] && of.second == pair.channels[1];
    });
    for (int i = 0; i < pair.count; ++i) {
      set(pair.coefficients[i], {pair.channels[0], pair.channels[1], found->angle,
                                 pair.weights[0][i], pair.weights[1][i]});
    }
  }
  return rows;
}

PairRows mean_rows_of(const CodedKeyRows& keys, const PairRows& pairs) {
  PairRows rows;
  for (PairRow row : pairs) {
    row.a = keys.mean(row.first);
    row.b = keys.mean(row.second);
    if (row.a != 0 || row.b != 0) {
      rows.push_back(row);
    }
  }
  return rows;
}

// As many rows of every head: those that a head lacks have no weight.
KeyRowTensors to_tensors(const std::vector<PairRows>& heads, at::Device device) {
  std::size_t count = 0;
  for (const PairRows& rows : heads) {
    count = std::max(count, rows.size());
  }
  const std::vector<std::int64_t> shape{static_cast<std::int64_t>(heads.size()), 2,
                                        static_cast<std::int64_t>(count)};
  KeyRowTensors all{at::zeros(shape, at::kInt), at::full({shape[0], shape[2]}, -1, at::kInt),
                    at::zeros(shape, at::kFloat)};
  auto* channels = all.channels.mutable_data_ptr<std::int32_t>();
  auto* angles = all.angles.mutable_data_ptr<std::int32_t>();
  auto* weights = all.weights.mutable_data_ptr<float>();
  for (const PairRows& rows : heads) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      channels[i] = rows[i].first;
      channels[count + i] = rows[i].second;
      weights[i] = rows[i].a;
      weights[count + i] = rows[i].b;
      angles[i] = rows[i].angle;
    }
    channels += 2 * count;
    weights += 2 * count;
    angles += count;
  }
  return {all.channels.to(device), all.angles.to(device), all.weights.to(device)};
}

}  // namespace

GpuKeyRows::GpuKeyRows(const std::vector<const CodedKeyRows*>& heads, const ChannelPairs& pairs,
                       at::Device device)
    : turned_(heads.front()->form() == KeyForm::kPairs) {
  const PairRows of_pairs = rows_of_pairs(pairs);
  std::vector<PairRows> codes, means;
  std::vector<float> mean;
  for (const CodedKeyRows* keys : heads) {
    codes.push_back(code_rows_of(*keys, of_pairs));
    means.push_back(mean_rows_of(*keys, of_pairs));
    for (std::int64_t d = 0; d < keys->head_dim(); ++d) {
      mean.push_back(keys->mean(d));
    }
  }
  codes_ = to_tensors(codes, device);
  means_ = to_tensors(means, device);
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
