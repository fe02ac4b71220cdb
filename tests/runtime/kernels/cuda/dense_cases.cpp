// Dense and fused attention against runtime/kernels' references.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "runtime/kernels/fused_attention.h"
#include "tests/runtime/kernels/cuda/case_inputs.h"
#include "tests/runtime/kernels/cuda/kernel_cases.h"

namespace kvc::testing {
namespace {

struct DenseShape {
  std::vector<int> num_rows{37};
  std::vector<int> first_rows{};
  int num_heads = 4, num_kv_heads = 2, head_dim = 64, num_parts = 3, block_rows = 32;
  DeviceElement element = DeviceElement::kBFloat16;  // of the query
  DeviceElement store = DeviceElement::kBFloat16;
  bool raw_key = false, per_channel_keys = false, per_channel_values = false, norm = false,
       interleaved = false, positions = false;
  int rotated = -1;  // channels; -1: all
  float softcap = 0;
  int num_sources = 1;

  int width() const { return num_kv_heads * head_dim; }
  int num_pairs() const { return (rotated < 0 ? head_dim : rotated) / 2; }
};

std::string name_of(const DenseShape& shape) {
  std::string name = element_name(shape.store);
  const auto add = [&](const char* word, int number) {
    name += word;
    name += std::to_string(number);
  };
  if (shape.store != shape.element) {
    name += "_in_";
    name += element_name(shape.element);
  }
  add("_", shape.num_heads);
  add("_on_", shape.num_kv_heads);
  add("x", shape.head_dim);
  name += "_rows";
  for (const int rows : shape.num_rows) {
    add("_", rows);
  }
  add("_in_", shape.num_parts);
  name += shape.raw_key ? "_raw" : "";
  name += shape.interleaved ? "_interleaved" : "";
  name += shape.rotated >= 0 ? "_partly_rotated" : "";
  name += shape.per_channel_keys ? "_per_channel" : "";
  name += shape.per_channel_values ? "_per_channel_values" : "";
  name += shape.norm ? "_norm" : "";
  name += shape.positions ? "_positions" : "";
  name += shape.first_rows.empty() ? "" : "_window";
  name += shape.softcap != 0 ? "_softcap" : "";
  return name;
}

// Inputs of one case and the launch that reads them.
class DenseInputs {
 public:
  DenseInputs(KernelBackend& backend, const DenseShape& shape)
      : shape_(shape),
        angles_(backend, 3 * longest() + 8, shape.num_pairs(), shape.interleaved),
        query_(rounded(case_numbers(num_sequences() * shape.num_heads * shape.head_dim, 1),
                       shape.element)) {
    for (int source = 0; source < shape.num_sources; ++source) {
      add_source(backend, static_cast<unsigned>(source));
    }
    if (shape.raw_key && shape.norm) {
      bias_ = case_numbers(shape.width(), 77);
      norm_ = case_numbers(shape.head_dim, 78);
      device_.raw_keys.bias = backend.upload(bias_);
      device_.raw_keys.norm = backend.upload(norm_);
      device_.raw_keys.norm_epsilon = 1e-5f;
    }
    for (std::int64_t row = 0; row < num_sequences() * longest(); ++row) {
      positions_.push_back(static_cast<std::int32_t>(row % longest() * 2 + row % 3));
    }
    device_.query = backend.upload(narrowed(query_, shape.element));
    device_.element = shape.element;
    device_.num_sources = shape.num_sources;
    device_.num_rows =
        backend.upload(std::vector<std::int32_t>(shape.num_rows.begin(), shape.num_rows.end()));
    if (!shape.first_rows.empty()) {
      device_.first_rows = backend.upload(
          std::vector<std::int32_t>(shape.first_rows.begin(), shape.first_rows.end()));
    }
    if (shape.positions) {
      device_.positions = backend.upload(positions_);
      device_.positions_stride = longest();
    }
    device_.first_position = kFirstPosition;
    device_.raw_keys.rope = angles_.device;
    device_.num_sequences = static_cast<int>(num_sequences());
    device_.num_heads = shape.num_heads;
    device_.num_kv_heads = shape.num_kv_heads;
    device_.head_dim = shape.head_dim;
    device_.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    device_.softcap = shape.softcap;
    device_.partials = unwritten_partials(backend, device_.num_sequences, shape.num_parts,
                                          shape.num_heads, shape.head_dim);
  }

  const DenseAttention& device() const { return device_; }

  CombinedOutput reference() const {
    CombinedOutput all;
    for (std::size_t sequence = 0; sequence < shape_.num_rows.size(); ++sequence) {
      const auto heads = static_cast<std::size_t>(shape_.num_heads);
      std::vector<float> max(heads), sum(heads),
          output(heads * static_cast<std::size_t>(shape_.head_dim));
      const AttentionPartial partial{max.data(), sum.data(), output.data()};
      reference_partial(sequence, partial);
      std::vector<float> combined(output.size()), log_sum(heads);
      combine_partials(&partial, 1, shape_.num_heads, shape_.head_dim, combined.data(),
                       log_sum.data());
      all.output.insert(all.output.end(), combined.begin(), combined.end());
      all.log_sum.insert(all.log_sum.end(), log_sum.begin(), log_sum.end());
    }
    return all;
  }

 private:
  static constexpr int kFirstPosition = 3;

  std::int64_t num_sequences() const { return static_cast<std::int64_t>(shape_.num_rows.size()); }
  std::int64_t longest() const {
    std::int64_t most = 0;
    for (const int rows : shape_.num_rows) {
      most = std::max<std::int64_t>(most, rows);
    }
    return most;
  }

  void add_source(KernelBackend& backend, unsigned source) {
    CaseRowsShape rows{shape_.num_rows, shape_.width(), shape_.head_dim, shape_.block_rows,
                       shape_.store};
    rows.per_channel = shape_.per_channel_keys;
    keys_.push_back(std::make_unique<CaseRows>(backend, rows, 1000 + 5000 * source));
    rows.per_channel = shape_.per_channel_values;
    values_.push_back(std::make_unique<CaseRows>(backend, rows, 3000 + 5000 * source));
    AttendedRows& to = device_.rows[source];
    to.key = keys_.back()->device();
    to.value = values_.back()->device();
    to.raw_key = shape_.raw_key;
    if (shape_.num_sources == 2) {
      key_factors_[source] = case_numbers(shape_.width(), 90 + source);
      value_factors_[source] = case_numbers(shape_.width(), 95 + source);
      to.key_factor = backend.upload(key_factors_[source]);
      to.value_factor = backend.upload(value_factors_[source]);
    }
  }

  KvSegment host_segment(std::size_t source, std::size_t sequence) const {
    return {.key = keys_[source]->host(sequence),
            .value = values_[source]->host(sequence),
            .positions = shape_.positions
                             ? positions_.data() + static_cast<std::int64_t>(sequence) * longest()
                             : nullptr,
            .first_position = kFirstPosition,
            .raw_key = shape_.raw_key};
  }

  void reference_partial(std::size_t sequence, const AttentionPartial& partial) const {
    const DecodeAttentionParams params{
        .query = query_.data() +
                 static_cast<std::int64_t>(sequence) * shape_.num_heads * shape_.head_dim,
        .num_heads = shape_.num_heads,
        .num_kv_heads = shape_.num_kv_heads,
        .head_dim = shape_.head_dim,
        .scale = device_.scale,
        .softcap = shape_.softcap,
        .raw_keys = {.rope = angles_.host,
                     .bias = bias_.empty() ? nullptr : bias_.data(),
                     .norm = norm_.empty() ? nullptr : norm_.data(),
                     .norm_epsilon = device_.raw_keys.norm_epsilon}};
    const int first = shape_.first_rows.empty() ? 0 : shape_.first_rows[sequence];
    if (shape_.num_sources == 1) {
      return decode_attention_partial_reference(params, host_segment(0, sequence), first,
                                                shape_.num_rows[sequence], partial);
    }
    const FusedSegment fused{.first = host_segment(0, sequence),
                             .second = host_segment(1, sequence),
                             .first_key = key_factors_[0].data(),
                             .second_key = key_factors_[1].data(),
                             .first_value = value_factors_[0].data(),
                             .second_value = value_factors_[1].data()};
    fused_attention_partial_reference(params, fused, first, shape_.num_rows[sequence], partial);
  }

  DenseShape shape_;
  CaseAngles angles_;
  std::vector<float> query_, bias_, norm_, key_factors_[2], value_factors_[2];
  std::vector<std::int32_t> positions_;
  std::vector<std::unique_ptr<CaseRows>> keys_, values_;
  DenseAttention device_;
};

KernelCase dense_case(const DenseShape& shape) {
  return {name_of(shape), [shape](KernelBackend& backend) {
            const DenseInputs inputs(backend, shape);
            backend.run(inputs.device());
            const CombinedOutput actual =
                combine_on(backend, {inputs.device().partials}, inputs.device().num_sequences,
                           shape.num_heads, shape.head_dim);
            const CombinedOutput expected = inputs.reference();
            // A fused layer's scores and values are sums of products with factors: of larger numbers.
            const double tolerance =
                case_tolerance(shape.element) * (shape.num_sources == 2 ? 4 : 1);
            const std::string output = compare("output", actual.output, expected.output, tolerance);
            return output.empty() ? compare("log_sum", actual.log_sum, expected.log_sum, tolerance)
                                  : output;
          }};
}

// Every store, each with what it alone has.
std::vector<DenseShape> stores() {
  std::vector<DenseShape> shapes;
  for (const DeviceElement element : {DeviceElement::kBFloat16, DeviceElement::kFloat16}) {
    for (const DeviceElement store :
         {element, DeviceElement::kFloat8, DeviceElement::kInt8, DeviceElement::kInt4}) {
      DenseShape shape{.element = element, .store = store};
      shape.raw_key = shape.per_channel_keys = is_coded(store);
      shapes.push_back(shape);
    }
  }
  return shapes;
}

}  // namespace

std::vector<KernelCase> dense_attention_cases(CaseSize size) {
  std::vector<DenseShape> shapes = stores();
  const DeviceElement half = DeviceElement::kFloat16, int8 = DeviceElement::kInt8,
                      int4 = DeviceElement::kInt4;
  shapes.push_back({.num_rows = {1, 300, 64}, .num_heads = 2, .num_parts = 2, .block_rows = 64});
  shapes.push_back({.num_rows = {65},
                    .num_heads = 12,
                    .num_kv_heads = 1,
                    .head_dim = 32,
                    .element = half,
                    .store = half});
  shapes.push_back(
      {.num_rows = {70}, .num_heads = 3, .num_kv_heads = 3, .head_dim = 128, .num_parts = 1});
  shapes.push_back(
      {.num_rows = {33}, .num_heads = 8, .num_kv_heads = 1, .head_dim = 256, .num_parts = 1});
  shapes.push_back({.num_rows = {100, 40}, .first_rows = {45, 39}, .softcap = 3});
  // Parts of one tile, of two, and without any; as many as one sequence has on 132 multiprocessors.
  shapes.push_back({.num_rows = {2200, 1500},
                    .num_heads = 1,
                    .num_kv_heads = 1,
                    .head_dim = 32,
                    .num_parts = 66});
  shapes.push_back({.element = half,
                    .store = int8,
                    .raw_key = true,
                    .per_channel_keys = true,
                    .norm = true,
                    .positions = true});
  shapes.push_back(
      {.head_dim = 128, .element = half, .store = int4, .raw_key = true, .interleaved = true});
  shapes.push_back({.head_dim = 64,
                    .element = half,
                    .store = int4,
                    .raw_key = true,
                    .per_channel_keys = true,
                    .rotated = 16});
  shapes.push_back(
      {.num_heads = 1, .num_kv_heads = 1, .head_dim = 32, .element = half, .store = int8});
  for (const DeviceElement store : {DeviceElement::kFloat8, int8, int4}) {
    const bool coded = is_coded(store);
    // Angles by distance: of a window's tiles, of sixteen query heads, of fewer positions than a tile has tokens.
    shapes.push_back({.num_rows = {200, 64},
                      .first_rows = {70, 33},
                      .num_heads = 12,
                      .num_kv_heads = 1,
                      .head_dim = 128,
                      .store = store,
                      .raw_key = true,
                      .per_channel_keys = coded});
    shapes.push_back(
        {.num_rows = {5}, .store = store, .raw_key = true, .per_channel_values = coded});
    shapes.push_back(
        {.num_rows = {70}, .element = half, .store = store, .raw_key = true, .norm = true});
    shapes.push_back({.num_rows = {40},
                      .num_heads = 2,
                      .num_kv_heads = 1,
                      .head_dim = 256,
                      .num_parts = 1,
                      .element = half,
                      .store = store,
                      .raw_key = true,
                      .per_channel_keys = coded,
                      .positions = true});
    shapes.push_back({.num_rows = {65},
                      .head_dim = 128,
                      .num_parts = 1,
                      .element = half,
                      .store = store,
                      .per_channel_keys = coded,
                      .per_channel_values = coded});
    // Three slots of pairs that are turned, and others that are not.
    shapes.push_back(
        {.num_rows = {33}, .element = half, .store = store, .raw_key = true, .rotated = 24});
    shapes.push_back({.num_rows = {33},
                      .element = half,
                      .store = store,
                      .raw_key = true,
                      .per_channel_keys = coded,
                      .norm = true,
                      .interleaved = true,
                      .rotated = 40});
  }
  if (size == CaseSize::kLarge) {
    for (DenseShape shape : stores()) {
      shape.num_rows = {4096, 1, 777, 2050};
      shape.num_heads = 32;
      shape.num_kv_heads = 8;
      shape.head_dim = 128;
      shape.num_parts = 7;
      shape.block_rows = 64;
      shapes.push_back(shape);
    }
  }
  std::vector<KernelCase> cases;
  for (const DenseShape& shape : shapes) {
    cases.push_back(dense_case(shape));
  }
  return cases;
}

std::vector<KernelCase> fused_attention_cases(CaseSize size) {
  std::vector<DenseShape> shapes = stores();
  shapes.push_back(
      {.num_rows = {100, 40}, .first_rows = {45, 39}, .head_dim = 128, .num_parts = 2});
  if (size == CaseSize::kLarge) {
    shapes.push_back({.num_rows = {3000, 65},
                      .num_heads = 32,
                      .num_kv_heads = 8,
                      .head_dim = 128,
                      .num_parts = 9});
  }
  std::vector<KernelCase> cases;
  for (DenseShape shape : shapes) {
    shape.num_sources = 2;
    cases.push_back(dense_case(shape));
  }
  return cases;
}

}  // namespace kvc::testing
