// Attention over codes of keys that meet the query, against runtime/kernels/coded_attention.h.
#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "runtime/kernels/coded_attention.h"
#include "runtime/kernels/cuda/attention_codes.h"
#include "runtime/kernels/cuda/attention_rank.h"
#include "runtime/kernels/cuda/device_layout.h"
#include "tests/runtime/kernels/cuda/case_inputs.h"
#include "tests/runtime/kernels/cuda/case_tiles.h"
#include "tests/runtime/kernels/cuda/kernel_cases.h"

namespace kvc::testing {
namespace {

constexpr int kFirstPosition = 3, kBlockTiles = 2;

int round_up(int count, int step) { return (count + step - 1) / step * step; }

struct CodedShape {
  std::vector<int> num_rows{37};
  std::vector<int> first_rows{};
  int num_heads = 4, num_kv_heads = 2, head_dim = 64, num_parts = 2;
  DeviceElement element = DeviceElement::kFloat16;
  bool turned = false;  // codes of keys before RoPE, two coefficients a rotary pair
  bool gain = false, means = false, interleaved = false, whole_values = false;
  bool empty = false;  // the first head has no coefficients
  int rotated = -1;    // channels; -1: all
  std::vector<int>
      widths{};  // bits of the coefficients of every head, falling; empty: some of every width
  float softcap = 0;

  int longest() const { return *std::max_element(num_rows.begin(), num_rows.end()); }
  int num_pairs() const { return (rotated < 0 ? head_dim : rotated) / 2; }
  int num_sequences() const { return static_cast<int>(num_rows.size()); }
};

std::string name_of(const CodedShape& shape) {
  std::string name = shape.turned ? "pairs" : "rotated";
  const auto add = [&](const char* word, int number) {
    name += word;
    name += std::to_string(number);
  };
  name += "_in_" + element_name(shape.element);
  add("_", shape.num_heads);
  add("_on_", shape.num_kv_heads);
  add("x", shape.head_dim);
  for (const int rows : shape.num_rows) {
    add("_rows_", rows);
  }
  add("_in_", shape.num_parts);
  name += shape.gain ? "_gain" : "";
  name += shape.means ? "_means" : "";
  name += shape.interleaved ? "_interleaved" : "";
  name += shape.whole_values ? "_whole_values" : "";
  name += shape.empty ? "_empty" : "";
  name += shape.rotated >= 0 ? "_partly_rotated" : "";
  name += shape.first_rows.empty() ? "" : "_window";
  name += shape.softcap != 0 ? "_softcap" : "";
  if (!shape.widths.empty()) {
    add("_coefficients_", static_cast<int>(shape.widths.size()));
  }
  for (std::size_t i = 0; i < shape.widths.size(); ++i) {
    if (i == 0 || shape.widths[i] != shape.widths[i - 1]) {
      add("_bits_", shape.widths[i]);
    }
  }
  return name;
}

// Some coefficients of every width, up to `most`; seeds leave out others.
TileLayout layout_of(int most, unsigned seed, bool gain) {
  TileLayout layout;
  layout.gain = gain;
  std::int64_t left = most;
  for (int bits = kWidestCode; bits >= 1; --bits) {
    const auto share = static_cast<std::int64_t>((seed + 3 * static_cast<unsigned>(bits)) % 5);
    layout.coefficients[bits] = std::min(left, share * most / 12);
    left -= layout.coefficients[bits];
  }
  return layout;
}

TileLayout layout_of(const std::vector<int>& widths, bool gain) {
  TileLayout layout;
  layout.gain = gain;
  for (const int bits : widths) {
    ++layout.coefficients[bits];
  }
  return layout;
}

// Random codes of all sequences, the same bytes on both sides.
class CaseTiles {
 public:
  CaseTiles(KernelBackend& backend, const std::vector<int>& num_rows, const TileLayout& of,
            unsigned seed)
      : layout(of) {
    std::mt19937 random(seed);
    int longest = 0;
    for (const int rows : num_rows) {
      longest = std::max(longest, rows);
    }
    const int max_blocks = round_up(longest, 32 * kBlockTiles) / (32 * kBlockTiles);
    std::vector<const void*> table;
    for (const int rows : num_rows) {
      auto& blocks = host_.emplace_back();
      for (int block = 0; block < max_blocks; ++block) {
        std::vector<std::uint8_t>& bytes = memory_.emplace_back();
        for (int i = 0; i < kBlockTiles && (block * kBlockTiles + i) * 32 < rows; ++i) {
          add_tile(bytes, random);
        }
        blocks.push_back(bytes.data());
        table.push_back(bytes.empty() ? nullptr : backend.upload(bytes));
      }
    }
    device = device_layout(layout);
    device.blocks = backend.upload(table);
    device.max_blocks = max_blocks;
    device.block_tiles = kBlockTiles;
  }

  CodeTiles host(std::size_t sequence, int rows) const {
    return {host_[sequence].data(), kBlockTiles, (rows + 31) / 32, layout};
  }

  TileLayout layout;
  DeviceTiles device;

 private:
  void add_tile(std::vector<std::uint8_t>& bytes, std::mt19937& random) const {
    std::vector<std::uint8_t> codes, gains(kTileTokens),
        tile(static_cast<std::size_t>(layout.bytes()));
    for (const int bits : widths_of(layout)) {
      for (std::int64_t token = 0; token < kTileTokens; ++token) {
        codes.push_back(static_cast<std::uint8_t>(random() % (1u << bits)));
      }
    }
    for (std::uint8_t& gain : gains) {
      gain = static_cast<std::uint8_t>(random() % 5);
    }
    if (!tile.empty()) {
      pack_tile_reference(layout, codes.data(), gains.data(), tile.data());
    }
    bytes.insert(bytes.end(), tile.begin(), tile.end());
  }

  std::deque<std::vector<std::uint8_t>> memory_;
  std::deque<std::vector<const void*>> host_;  // [sequences][blocks]
};

// The two channels of pair `pair` of a head, and its angle or -1.
struct Pair {
  int first, second, angle;
};
Pair pair_of(const CodedShape& shape, int pair) {
  const int turned = shape.num_pairs();
  if (pair >= turned) {
    return {2 * pair, 2 * pair + 1, -1};
  }
  return shape.interleaved ? Pair{2 * pair, 2 * pair + 1, pair} : Pair{pair, pair + turned, pair};
}

// Rows of all heads as they are uploaded.
struct HostRows {
  std::vector<std::int32_t> channels[2], angles;
  std::vector<float> weights[2];

  void add(const Pair& pair, float a, float b) {
    channels[0].push_back(pair.first);
    channels[1].push_back(pair.second);
    angles.push_back(pair.angle);
    weights[0].push_back(a);
    weights[1].push_back(b);
  }
};
KeyRows uploaded(KernelBackend& backend, std::vector<HostRows> heads) {
  std::size_t count = 0;
  for (const HostRows& rows : heads) {
    count = std::max(count, rows.angles.size());
  }
  HostRows all;
  for (HostRows& rows : heads) {
    while (rows.angles.size() < count) {
      rows.add({0, 0, -1}, 0, 0);
    }
    for (int i = 0; i < 2; ++i) {
      all.channels[0].insert(all.channels[0].end(), rows.channels[i].begin(),
                             rows.channels[i].end());
      all.weights[0].insert(all.weights[0].end(), rows.weights[i].begin(), rows.weights[i].end());
    }
    all.angles.insert(all.angles.end(), rows.angles.begin(), rows.angles.end());
  }
  return {static_cast<int>(count), backend.upload(all.channels[0]), backend.upload(all.weights[0]),
          backend.upload(all.angles)};
}

class CodedCase {
 public:
  CodedCase(KernelBackend& backend, const CodedShape& shape)
      : backend_(backend),
        shape_(shape),
        angles_(backend, std::max(kFirstPosition + shape.longest(), 32), shape.num_pairs(),
                shape.interleaved),
        query_(rounded(case_numbers(shape.num_sequences() * shape.num_heads * shape.head_dim, 1),
                       shape.element)) {
    std::vector<HostRows> codes, means;
    for (int head = 0; head < shape.num_kv_heads; ++head) {
      add_keys(head, codes.emplace_back(), means.emplace_back());
      if (!shape.whole_values || head == 0) {
        const bool none = shape.empty && head == 0;
        const int most = shape.whole_values ? 3 * shape.head_dim / 2 : shape.head_dim;
        values_.emplace_back(
            backend, shape.num_rows,
            shape.widths.empty()
                ? layout_of(none ? 0 : most, static_cast<unsigned>(2 + head), shape.gain)
                : layout_of(shape.widths, shape.gain),
            static_cast<unsigned>(40 + head));
      }
    }
    set_params(codes, means);
  }

  std::string check() {
    backend_.run(device_);
    if (shape_.whole_values) {
      backend_.run(sums());
    }
    const CombinedOutput actual = combine_on(backend_, {device_.partials}, shape_.num_sequences(),
                                             shape_.num_heads, device_.sums_width);
    const std::string sums = compare("sums", in_steps(actual.output), in_steps(expected()),
                                     case_tolerance(DeviceElement::kFloat16));
    return sums.empty() ? compare("log_sum", actual.log_sum, log_sums_, 5e-3) : sums;
  }

 private:
  const CaseTiles& values_of(int kv_head) const {
    return values_[shape_.whole_values ? 0 : static_cast<std::size_t>(kv_head)];
  }

  // Codes of keys, the transform on both sides.
  void add_keys(int head, HostRows& codes, HostRows& means) {
    const int dim = shape_.head_dim;
    const auto seed = static_cast<unsigned>(head);
    const bool none = shape_.empty && head == 0;
    const bool gain = shape_.gain && head % 2 == 0;
    const TileLayout layout = shape_.widths.empty() ? layout_of(none ? 0 : dim, seed, gain)
                                                    : layout_of(shape_.widths, gain);
    keys_.emplace_back(backend_, shape_.num_rows, layout, 20 + seed);
    const std::vector<int> widths = widths_of(layout);
    const auto count = static_cast<std::int64_t>(widths.size());
    std::vector<int> places(
        static_cast<std::size_t>(dim));  // of coefficients: pair / 2, its channel
    std::iota(places.begin(), places.end(), 0);
    std::shuffle(places.begin(), places.end(), std::mt19937(seed));
    std::vector<std::int32_t> order;
    for (int pair = 0; pair < dim / 2; ++pair) {
      order.push_back(pair_of(shape_, pair).first);
      order.push_back(pair_of(shape_, pair).second);
    }
    const std::vector<float> factors = case_numbers(2 * dim, 30 + seed);
    std::vector<float> decoder(static_cast<std::size_t>(dim * std::max<std::int64_t>(count, 1))),
        steps, mean(static_cast<std::size_t>(dim));
    for (std::int64_t c = 0; c < count; ++c) {
      const auto index = static_cast<std::size_t>(c);
      const float step = 4.0f / static_cast<float>(1 << widths[index]);
      steps.push_back(step);
      const int place = places[index];
      Pair pair = pair_of(shape_, place / 2);
      float a = factors[2 * index], b = factors[2 * index + 1];
      if (!shape_.turned) {
        pair =
            place % 2 == 0 ? Pair{pair.first, pair.second, -1} : Pair{pair.second, pair.first, -1};
        b = 0;
      }
      decoder[static_cast<std::size_t>(pair.first * count + c)] = a;
      decoder[static_cast<std::size_t>(pair.second * count + c)] = b;
      codes.add(pair, a * step, b * step);
    }
    const std::vector<float> random = case_numbers(dim, 50 + seed);
    for (int i = 0; shape_.means && i < dim / 2; i += 3 + head) {
      const Pair pair = pair_of(shape_, i);
      mean[static_cast<std::size_t>(pair.first)] = 4 * random[static_cast<std::size_t>(2 * i)];
      mean[static_cast<std::size_t>(pair.second)] = 4 * random[static_cast<std::size_t>(2 * i + 1)];
      means.add(pair, mean[static_cast<std::size_t>(pair.first)],
                mean[static_cast<std::size_t>(pair.second)]);
    }
    rows_.emplace_back(
        layout, decoder.data(), count, dim, steps.data(), mean.data(),
        KeyBases{.count = dim / 2, .rotated = !shape_.turned, .channels = order.data()});
  }

  void set_params(const std::vector<HostRows>& codes, const std::vector<HostRows>& means) {
    std::vector<DeviceTiles> keys, values;
    for (const CaseTiles& tiles : keys_) {
      keys.push_back(tiles.device);
      device_.most_key_bytes = std::max(device_.most_key_bytes, tile_bytes(tiles.device));
    }
    for (const CaseTiles& tiles : values_) {
      values.push_back(tiles.device);
      device_.most_value_bytes = std::max(device_.most_value_bytes, tile_bytes(tiles.device));
      most_values_ = std::max(most_values_, tiles.device.num_coefficients);
    }
    device_.query = backend_.upload(narrowed(query_, shape_.element));
    device_.element = shape_.element;
    device_.keys = backend_.upload(keys);
    value_tiles_ = backend_.upload(values);
    device_.values = shape_.whole_values ? nullptr : value_tiles_;
    device_.turned = shape_.turned;
    device_.codes = uploaded(backend_, codes);
    device_.means = uploaded(backend_, means);
    device_.cos = angles_.device.cos;
    device_.sin = angles_.device.sin;
    device_.num_angles = shape_.num_pairs();
    device_.num_rows =
        backend_.upload(std::vector<std::int32_t>(shape_.num_rows.begin(), shape_.num_rows.end()));
    if (!shape_.first_rows.empty()) {
      device_.first_rows = backend_.upload(
          std::vector<std::int32_t>(shape_.first_rows.begin(), shape_.first_rows.end()));
    }
    device_.first_position = kFirstPosition;
    device_.num_sequences = shape_.num_sequences();
    device_.num_heads = shape_.num_heads;
    device_.num_kv_heads = shape_.num_kv_heads;
    device_.head_dim = shape_.head_dim;
    device_.scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
    device_.softcap = shape_.softcap;
    device_.sums_width = round_up(std::max(most_values_, 1), 32);
    device_.partials = unwritten_partials(backend_, device_.num_sequences, shape_.num_parts,
                                          shape_.num_heads, device_.sums_width);
    if (shape_.whole_values) {
      device_.max_tiles = (shape_.longest() + 31) / 32 + 1;
      const auto rows =
          static_cast<std::size_t>(device_.num_sequences * device_.max_tiles * device_.num_heads);
      device_.weights = backend_.unwritten<std::uint16_t>(32 * rows);
      device_.tile_max = backend_.unwritten<float>(rows);
      device_.tile_sum = backend_.unwritten<float>(rows);
    }
  }

  RankAttention sums() const {
    RankAttention sums;
    sums.element = DeviceElement::kFloat16;
    sums.value_codes = {value_tiles_, 1, most_values_};
    sums.num_rows = device_.num_rows;
    sums.first_rows = device_.first_rows;
    sums.num_sequences = device_.num_sequences;
    sums.num_heads = device_.num_heads;
    sums.num_kv_heads = device_.num_kv_heads;
    sums.head_dim = device_.head_dim;
    sums.max_tiles = device_.max_tiles;
    sums.weights = device_.weights;
    sums.tile_max = device_.tile_max;
    sums.tile_sum = device_.tile_sum;
    sums.partials = device_.partials;
    sums.sums_width = device_.sums_width;
    return sums;
  }

  // Levels in units of their largest.
  std::vector<float> in_steps(std::vector<float> sums) const {
    const int group = shape_.num_heads / shape_.num_kv_heads;
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const std::size_t row = i / static_cast<std::size_t>(device_.sums_width);
      const std::size_t c = i % static_cast<std::size_t>(device_.sums_width);
      const int head = static_cast<int>(row) % shape_.num_heads;
      const std::vector<int> widths = widths_of(values_of(head / group).layout);
      sums[i] /= c < widths.size() ? static_cast<float>(1 << widths[c]) : 1.0f;
    }
    return sums;
  }

  // Means of gain * level.
  std::vector<float> expected() {
    std::vector<float> all;
    log_sums_.clear();
    for (std::size_t sequence = 0; sequence < shape_.num_rows.size(); ++sequence) {
      for (int kv_head = 0; kv_head < shape_.num_kv_heads; ++kv_head) {
        add_expected(sequence, kv_head, all);
      }
    }
    return all;
  }

  void add_expected(std::size_t sequence, int kv_head, std::vector<float>& all) {
    const int rows = shape_.num_rows[sequence], group = shape_.num_heads / shape_.num_kv_heads;
    const int first = shape_.first_rows.empty() ? 0 : shape_.first_rows[sequence];
    const CaseTiles& values = values_of(kv_head);
    const std::vector<int> widths = widths_of(values.layout);
    const auto heads = static_cast<std::size_t>(group), width = widths.size() + 1;
    std::vector<float> max(heads, -INFINITY), sum(heads), output(heads * width);
    DecodeAttentionParams params;
    params.query = query_.data() + (sequence * static_cast<std::size_t>(shape_.num_heads) +
                                    static_cast<std::size_t>(kv_head * group)) *
                                       static_cast<std::size_t>(shape_.head_dim);
    params.num_heads = group;
    params.num_kv_heads = 1;
    params.head_dim = shape_.head_dim;
    params.scale = device_.scale;
    params.softcap = shape_.softcap;
    params.raw_keys.rope = angles_.host;
    if (first < rows) {
      CodedSegment segment;
      segment.keys = keys_[static_cast<std::size_t>(kv_head)].host(sequence, rows);
      segment.values = values.host(sequence, rows);
      segment.rows = &rows_[static_cast<std::size_t>(kv_head)];
      segment.first_position = kFirstPosition;
      coded_attention_partial_reference(params, segment, first, rows,
                                        {max.data(), sum.data(), output.data()});
    }
    for (std::size_t head = 0; head < heads; ++head) {
      const float* of_head = output.data() + head * width;
      for (std::size_t c = 0; c < static_cast<std::size_t>(device_.sums_width); ++c) {
        const bool exists = c < widths.size() && first < rows;
        all.push_back(exists ? (of_head[c] + of_head[widths.size()] * first_level(widths[c])) /
                                   sum[head]
                             : 0.0f);
      }
      log_sums_.push_back(max[head] + std::log(sum[head]));
    }
  }

  KernelBackend& backend_;
  CodedShape shape_;
  CaseAngles angles_;
  std::vector<float> query_, log_sums_;
  std::deque<CaseTiles> keys_, values_;  // of KV heads
  std::deque<CodedKeyRows> rows_;
  const DeviceTiles* value_tiles_ = nullptr;
  int most_values_ = 0;
  CodedAttention device_;
};

}  // namespace

// Lengths that end inside, at and behind tiles, parts with and without tokens, groups that widths divide and that they do
// not, heads of one fragment and of two.
std::vector<KernelCase> code_attention_cases(CaseSize size) {
  std::vector<CodedShape> shapes;
  for (const bool turned : {false, true}) {
    const DeviceElement bfloat16 = DeviceElement::kBFloat16;
    shapes.insert(
        shapes.end(),
        {{.turned = turned},
         {.num_rows = {65, 1}, .element = bfloat16, .turned = turned, .gain = true, .means = true},
         {.num_rows = {100, 96},
          .first_rows = {50, 64},
          .num_heads = 2,
          .head_dim = 128,
          .turned = turned,
          .gain = true,
          .means = true,
          .softcap = 4},
         {.num_rows = {200},
          .num_heads = 20,
          .num_kv_heads = 2,
          .head_dim = 32,
          .num_parts = 3,
          .turned = turned,
          .means = true,
          .interleaved = true},
         {.num_rows = {70, 33},
          .num_heads = 24,
          .turned = turned,
          .gain = true,
          .means = true,
          .whole_values = true},
         {.num_rows = {64}, .turned = turned, .means = true, .empty = true, .rotated = 16},
         {.num_rows = {40}, .head_dim = 256, .num_parts = 1, .turned = turned, .means = true}});
    if (size == CaseSize::kLarge) {
      for (const bool whole : {false, true}) {
        shapes.push_back({.num_rows = {2100, 1, 700},
                          .num_heads = 32,
                          .num_kv_heads = 8,
                          .head_dim = 128,
                          .num_parts = 5,
                          .element = bfloat16,
                          .turned = turned,
                          .gain = true,
                          .means = true,
                          .whole_values = whole});
      }
    }
  }
  for (int bits = 1; bits <= kWidestCode;
       ++bits) {  // a group alone, with a second one, with half of a second one
    for (const int count : {3, 16, 29}) {
      shapes.push_back({.widths = std::vector<int>(static_cast<std::size_t>(count), bits)});
    }
  }
  for (const std::vector<int>& both :
       {std::vector{8, 7}, {8, 5}, {7, 5}, {5, 3}, {5, 1}, {6, 1}, {4, 2}}) {
    CodedShape shape{.gain = true};  // a group of either: one product has planes of both
    shape.widths.assign(8, both[0]);
    shape.widths.insert(shape.widths.end(), 5, both[1]);
    shapes.push_back(shape);
  }
  std::vector<KernelCase> cases;
  for (const CodedShape& shape : shapes) {
    cases.push_back({name_of(shape), [shape](KernelBackend& backend) {
                       return CodedCase(backend, shape).check();
                     }});
  }
  return cases;
}

}  // namespace kvc::testing
