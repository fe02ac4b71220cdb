#include "tests/runtime/kernels/cuda/rank_case.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvc::testing {
namespace {

constexpr int kFirstPosition = 3;

int round_up(int count, int step) { return (count + step - 1) / step * step; }

// Numbers of pairs that kernels are compiled for.
int supported_pairs(int count) {
  for (const int pairs : {16, 24, 32, 48}) {
    if (count <= pairs) {
      return pairs;
    }
  }
  return 64;
}

// The two channels of pair `pair` of a head, and its angle or -1.
struct Pair {
  int first, second, angle;
};
Pair pair_of(const RankShape& shape, int pair) {
  const int turned = shape.num_pairs();
  if (pair >= turned) {
    const int channel = 2 * pair;
    return {channel, channel + 1, -1};
  }
  return shape.interleaved ? Pair{2 * pair, 2 * pair + 1, pair} : Pair{pair, pair + turned, pair};
}

template <class T>
std::vector<T> flat(const std::vector<std::vector<T>>& rows) {
  std::vector<T> all;
  for (const std::vector<T>& row : rows) {
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

}  // namespace

int RankShape::longest() const { return *std::max_element(num_rows.begin(), num_rows.end()); }

RankInputs::RankInputs(KernelBackend& backend, const RankShape& shape, int rank, int sums_width)
    : shape_(shape),
      rank_(rank),
      angles_(backend, 3 * shape.longest() + 8, shape.num_pairs(), shape.interleaved),
      query_(rounded(case_numbers(shape.num_sequences() * shape.num_heads * shape.head_dim, 1),
                     shape.element)),
      projection_(case_numbers(shape.num_kv_heads * shape.head_dim * rank, 2)) {
  const int channels = shape.num_kv_heads * shape.head_dim;
  stored_.assign(static_cast<std::size_t>(channels), -1);
  for (float& x : projection_) {
    x /= std::sqrt(static_cast<float>(rank));
  }
  projection_ = rounded(projection_, shape.element);
  offset_.assign(static_cast<std::size_t>(channels), 0.0f);
  scale_.assign(static_cast<std::size_t>(channels), 1.0f);
  if (shape.offset) {
    offset_ = case_numbers(channels, 3);
  }
  if (shape.norm) {
    norm_ = case_numbers(shape.head_dim, 4);
  }
  if (shape.num_blocks > 0) {
    for (float& x : scale_) {
      x = 0.02f;
    }
  }
  for (int row = 0; row < shape.num_sequences() * shape.longest(); ++row) {
    positions_.push_back(row % shape.longest() * 2 + row % 3);
  }
  device.query = backend.upload(narrowed(query_, shape.element));
  device.element = shape.element;
  device.cos = angles_.device.cos;
  device.sin = angles_.device.sin;
  device.num_angles = shape.num_pairs();
  device.num_rows =
      backend.upload(std::vector<std::int32_t>(shape.num_rows.begin(), shape.num_rows.end()));
  if (!shape.first_rows.empty()) {
    device.first_rows =
        backend.upload(std::vector<std::int32_t>(shape.first_rows.begin(), shape.first_rows.end()));
  }
  if (shape.positions && shape.paged) {
    upload_pages(backend);
  } else if (shape.positions) {
    device.positions = backend.upload(positions_);
    device.positions_stride = shape.longest();
  }
  device.first_position = kFirstPosition;
  device.num_sequences = shape.num_sequences();
  device.num_heads = shape.num_heads;
  device.num_kv_heads = shape.num_kv_heads;
  device.head_dim = shape.head_dim;
  device.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  device.softcap = shape.softcap;
  device.max_tiles = (shape.longest() + 31) / 32 + 1;
  const auto rows =
      static_cast<std::size_t>(device.num_sequences * device.max_tiles * device.num_heads);
  device.weights = backend.unwritten<std::uint16_t>(32 * rows);
  device.tile_max = backend.unwritten<float>(rows);
  device.tile_sum = backend.unwritten<float>(rows);
  device.sums_width = sums_width;
  device.partials = unwritten_partials(backend, device.num_sequences, shape.num_parts,
                                       shape.num_heads, sums_width);
}

// Positions in pages of 32.
void RankInputs::upload_pages(KernelBackend& backend) {
  const int pages = (shape_.longest() + 31) / 32;
  std::vector<const void*> blocks;
  for (int sequence = 0; sequence < shape_.num_sequences(); ++sequence) {
    for (int page = 0; page < pages; ++page) {
      std::vector<std::int32_t> rows(32, -1);
      for (int row = 0; row < 32 && 32 * page + row < shape_.longest(); ++row) {
        rows[static_cast<std::size_t>(row)] =
            positions_[static_cast<std::size_t>(sequence * shape_.longest() + 32 * page + row)];
      }
      blocks.push_back(backend.upload(rows));
    }
  }
  device.paged_positions = {backend.upload(blocks), pages, 32, 1};
}

void RankInputs::store_channel(int kv_head, int channel, int column) {
  const int row = kv_head * shape_.head_dim + channel;
  stored_[static_cast<std::size_t>(row)] = column;
  float* projection = projection_.data() + row * rank_;
  std::fill(projection, projection + rank_, 0.0f);
  projection[column] = 1;
}

bool RankInputs::is_stored(int kv_head, int pair) const {
  return stored_[static_cast<std::size_t>(kv_head * shape_.head_dim +
                                          pair_of(shape_, pair).first)] >= 0;
}

const void* const* RankInputs::upload_own(KernelBackend& backend,
                                          const std::vector<float>& rows) const {
  std::vector<const void*> sequences;
  for (std::size_t sequence = 0; sequence < shape_.num_rows.size(); ++sequence) {
    std::vector<float> own = rows;
    for (float& x : own) {
      x *= own_factor(sequence);
    }
    sequences.push_back(
        shape_.num_rows[sequence] == 0 ? nullptr : backend.upload(narrowed(own, shape_.element)));
    sequences.push_back(nullptr);  // of a stride of 2
  }
  return backend.upload(sequences);
}

// The projection, a head's channels in the order of its pairs.
std::vector<float> RankInputs::own_keys() const {
  std::vector<float> rows;
  for (int kv_head = 0; kv_head < shape_.num_kv_heads; ++kv_head) {
    for (int second = 0; second < 2; ++second) {
      for (int i = 0; i < shape_.head_dim / 2; ++i) {
        const Pair pair = pair_of(shape_, i);
        const int channel = kv_head * shape_.head_dim + (second == 0 ? pair.first : pair.second);
        const float* from = projection_.data() + static_cast<std::ptrdiff_t>(channel) * rank_;
        rows.insert(rows.end(), from, from + rank_);
      }
    }
  }
  return rows;
}

void RankInputs::upload_keys(KernelBackend& backend,
                             const std::vector<std::int32_t>& first_column) {
  const int rebuilt = supported_pairs(shape_.head_dim / 2 - shape_.num_stored);
  const int stored = round_up(shape_.num_stored, 8);
  const int stride = round_up(rank_, 32);
  // For rebuilt and stored pairs: channels, angles, offsets.
  std::vector<std::vector<std::int32_t>> channels[2], angles[2];
  std::vector<std::vector<float>> offsets[2];
  std::vector<float> scales, norms;
  std::vector<float> projection;
  for (int kv_head = 0; kv_head < shape_.num_kv_heads; ++kv_head) {
    std::vector<Pair> pairs[2];
    for (int pair = 0; pair < shape_.head_dim / 2; ++pair) {
      pairs[is_stored(kv_head, pair) ? 1 : 0].push_back(pair_of(shape_, pair));
    }
    pairs[0].resize(static_cast<std::size_t>(rebuilt), {-1, -1, -1});
    pairs[1].resize(static_cast<std::size_t>(stored), {-1, -1, -1});
    for (int kind = 0; kind < 2; ++kind) {
      angles[kind].emplace_back();
      for (const Pair& pair : pairs[kind]) {
        angles[kind].back().push_back(pair.angle);
      }
      for (int second = 0; second < 2; ++second) {
        channels[kind].emplace_back();
        offsets[kind].emplace_back();
        for (const Pair& pair : pairs[kind]) {
          const int channel = second == 0 ? pair.first : pair.second;
          channels[kind].back().push_back(channel);
          const auto row = static_cast<std::size_t>(kv_head * shape_.head_dim + channel);
          offsets[kind].back().push_back(channel < 0 ? 0 : offset_[row]);
          if (kind == 1) {
            continue;
          }
          scales.push_back(channel < 0 ? 0 : scale_[row]);
          norms.push_back(channel < 0 || norm_.empty() ? 0
                                                       : norm_[static_cast<std::size_t>(channel)]);
          for (int c = 0; c < stride; ++c) {
            projection.push_back(channel < 0 || c >= rank_
                                     ? 0
                                     : projection_[row * static_cast<std::size_t>(rank_) +
                                                   static_cast<std::size_t>(c)]);
          }
        }
      }
    }
  }
  const auto upload_pairs = [&](int kind, int count) {
    return KeyPairs{count, backend.upload(flat(channels[kind])), backend.upload(flat(angles[kind])),
                    shape_.offset ? backend.upload(flat(offsets[kind])) : nullptr};
  };
  device.keys.pairs = upload_pairs(0, rebuilt);
  device.keys.projection = backend.upload(narrowed(projection, shape_.element));
  device.keys.rank_stride = stride;
  if (shape_.own) {
    device.keys.projection = nullptr;
    device.keys.rank_stride = rank_;
    device.keys.projections = upload_own(backend, own_keys());
    device.keys.projections_stride = 2;
  }
  device.keys.scale = shape_.num_blocks > 0 ? backend.upload(scales) : nullptr;
  device.keys.norm = norm_.empty() ? nullptr : backend.upload(norms);
  device.keys.norm_epsilon = 1e-5f;
  if (shape_.num_stored > 0) {
    device.stored.pairs = upload_pairs(1, stored);
    device.stored.num_stored = shape_.num_stored;
    device.stored.first_column = backend.upload(first_column);
  }
}

ReferenceRow RankInputs::key(std::size_t sequence, std::int64_t row, std::int64_t kv_head,
                             const ReferenceRow& latent, double gain) const {
  ReferenceRow channels;
  double squares = 0;
  for (std::int64_t d = 0; d < shape_.head_dim; ++d) {
    const auto channel = static_cast<std::size_t>(kv_head * shape_.head_dim + d);
    double sum = 0;
    for (std::size_t c = 0; c < latent.size(); ++c) {
      sum += projection_[channel * static_cast<std::size_t>(rank_) + c] * latent[c];
    }
    channels.push_back(gain * scale_[channel] * sum + offset_[channel]);
    squares += channels.back() * channels.back();
  }
  for (std::size_t d = 0; !norm_.empty() && d < channels.size(); ++d) {
    channels[d] *= norm_[d] / std::sqrt(squares / shape_.head_dim + 1e-5);
  }
  const std::int64_t position =
      shape_.positions ? positions_[sequence * static_cast<std::size_t>(shape_.longest()) +
                                    static_cast<std::size_t>(row)]
                       : kFirstPosition + row;
  rotate_reference(angles_.host, position, channels);
  return channels;
}

std::vector<float> RankInputs::expected_sums(const Reader& read_key,
                                             const Reader& read_value) const {
  std::vector<float> all;
  for (std::size_t sequence = 0; sequence < shape_.num_rows.size(); ++sequence) {
    const auto heads = static_cast<std::size_t>(shape_.num_heads);
    std::vector<float> max(heads), sum(heads),
        output(heads * static_cast<std::size_t>(device.sums_width));
    DecodeAttentionParams params;
    params.query = query_.data() + sequence * heads * static_cast<std::size_t>(shape_.head_dim);
    params.num_heads = shape_.num_heads;
    params.num_kv_heads = shape_.num_kv_heads;
    params.head_dim = shape_.head_dim;
    params.scale = device.scale;
    params.softcap = shape_.softcap;
    reference_attention(
        params, [&](std::int64_t row, std::int64_t head) { return read_key(sequence, row, head); },
        [&](std::int64_t row, std::int64_t head) {
          ReferenceRow value = read_value(sequence, row, head);
          value.resize(static_cast<std::size_t>(device.sums_width));
          return value;
        },
        shape_.first_rows.empty() ? 0 : shape_.first_rows[sequence], shape_.num_rows[sequence],
        {max.data(), sum.data(), output.data()});
    for (std::size_t i = 0; i < output.size(); ++i) {
      const float total = sum[i / static_cast<std::size_t>(device.sums_width)];
      all.push_back(total > 0 ? output[i] / total : 0.0f);  // of no tokens: zeros
    }
  }
  return all;
}

std::string RankInputs::check(KernelBackend& backend, const Reader& read_key,
                              const Reader& read_value) const {
  backend.run(device);
  const CombinedOutput actual = combine_on(backend, {device.partials}, device.num_sequences,
                                           device.num_heads, device.sums_width);
  const std::vector<float> expected = expected_sums(read_key, read_value);
  // Levels of codes go up to 127.
  const double largest = shape_.num_blocks > 0 ? 30 : 1;
  const std::string sums =
      compare("sums", actual.output, expected, largest * case_tolerance(shape_.element));
  return sums.empty() ? check_projection(backend, expected) : sums;
}

std::string RankInputs::check_projection(KernelBackend& backend,
                                         const std::vector<float>& sums) const {
  const int channels = shape_.num_kv_heads * shape_.head_dim,
            group = shape_.num_heads / shape_.num_kv_heads;
  const int rank = device.sums_width - 3, stride = device.sums_width + 5;  // any
  const std::vector<float> projection =
      rounded(case_numbers(channels * stride, 11), shape_.element);
  const std::vector<float> scale = case_numbers(channels, 12), offset = case_numbers(channels, 13);
  ProjectValues params;
  params.sums = backend.upload(sums);
  params.sums_width = device.sums_width;
  if (shape_.own) {
    params.projections = upload_own(backend, projection);
    params.projections_stride = 2;
  } else {
    params.projection = backend.upload(narrowed(projection, shape_.element));
  }
  params.element = shape_.element;
  params.rank = rank;
  params.rank_stride = stride;
  params.scale = backend.upload(scale);
  params.offset = backend.upload(offset);
  params.num_sequences = device.num_sequences;
  params.num_heads = shape_.num_heads;
  params.num_kv_heads = shape_.num_kv_heads;
  params.head_dim = shape_.head_dim;
  const std::size_t count = sums.size() / static_cast<std::size_t>(device.sums_width) *
                            static_cast<std::size_t>(shape_.head_dim);
  params.output = backend.unwritten<float>(count);
  backend.run(params);
  std::vector<float> expected;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t row = i / static_cast<std::size_t>(shape_.head_dim);
    const int head = static_cast<int>(row) % shape_.num_heads;
    const auto channel = static_cast<std::size_t>(head / group * shape_.head_dim) +
                         i % static_cast<std::size_t>(shape_.head_dim);
    double sum = 0;
    for (std::size_t c = 0; c < static_cast<std::size_t>(rank); ++c) {
      sum += double{projection[channel * static_cast<std::size_t>(stride) + c]} *
             sums[row * static_cast<std::size_t>(device.sums_width) + c];
    }
    if (shape_.own) {
      const std::size_t sequence = row / static_cast<std::size_t>(shape_.num_heads);
      sum *= shape_.num_rows[sequence] == 0 ? 0 : own_factor(sequence);
    }
    expected.push_back(static_cast<float>(sum * scale[channel] + offset[channel]));
  }
  return compare("values", backend.download(params.output, count), expected, 1e-2);
}

}  // namespace kvc::testing
