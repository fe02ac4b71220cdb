// Steps under a budget against budget_step_reference(): one sequence whose rows are laid out, from which tokens leave
// and are merged many times over, beside one whose budget is not used up.
#include <numeric>
#include <string>
#include <vector>

#include "tests/runtime/kernels/cuda/cache_kernels.h"
#include "tests/runtime/kernels/cuda/case_inputs.h"

namespace kvc::testing {
namespace {

struct BudgetShape {
  BudgetLayout layout;
  Demotion demotion = Demotion::kPaper;
  DeviceElement element = DeviceElement::kFloat16;
  int num_heads = 4, num_kv_heads = 2, head_dim = 32, num_parts = 2, steps = 24;
  float decay = 0.98f, softcap = 0;
  bool has_scores = true;
};

std::vector<float> widened(const std::vector<std::uint16_t>& bits, DeviceElement element) {
  std::vector<float> numbers;
  for (const std::uint16_t x : bits) {
    numbers.push_back(element == DeviceElement::kBFloat16 ? to_float(BFloat16{x})
                                                          : to_float(Float16{x}));
  }
  return numbers;
}

// One sequence's cache, on both sides.
class CaseCache {
 public:
  CaseCache(KernelMemory& memory, const BudgetShape& shape, int capacity, unsigned seed)
      : memory_(memory), shape_(shape) {
    const int rows = shape.num_kv_heads * capacity, dim = shape.head_dim;
    const int slots = shape.num_kv_heads * shape.layout.num_residual;
    keys_ = narrowed(case_numbers(rows * dim, seed), shape.element);
    values_ = narrowed(case_numbers(rows * dim, seed + 1), shape.element);
    scores_ = case_numbers(rows, seed + 2);
    residual_keys_ = case_numbers(slots * dim + 1, seed + 3);
    residual_values_ = case_numbers(slots * dim + 1, seed + 4);
    for (float& score : scores_) {
      score = score * score;
    }
    for (int i = 0; i < rows; ++i) {
      positions_.push_back(i % capacity);
    }
    for (int i = 0; i <= slots; ++i) {  // some slots are free
      counts_.push_back(static_cast<float>(i % 3));
      const bool is_free = i % 3 == 0;
      for (int c = 0; c < dim && is_free && i < slots; ++c) {
        residual_keys_[static_cast<std::size_t>(i * dim + c)] = 0;
        residual_values_[static_cast<std::size_t>(i * dim + c)] = 0;
      }
    }
    before_ = merged();
    const bool ranks = shape.has_scores;
    device = {shape.layout,
              capacity,
              memory.upload(keys_),
              memory.upload(values_),
              ranks ? memory.upload(scores_) : nullptr,
              ranks ? memory.upload(positions_) : nullptr,
              memory.upload(residual_keys_),
              memory.upload(residual_values_),
              memory.upload(counts_)};
    host = {shape.layout,
            capacity,
            keys_.data(),
            values_.data(),
            ranks ? scores_.data() : nullptr,
            ranks ? positions_.data() : nullptr,
            residual_keys_.data(),
            residual_values_.data(),
            counts_.data()};
  }

  // `leaving`: tokens that must have been merged.
  std::string check(int leaving) const {
    const double tolerance = 2 * case_tolerance(shape_.element);
    for (const std::string& difference :
         {compare("keys", numbers(device.keys, keys_), widened(keys_, shape_.element), tolerance),
          compare("values", numbers(device.values, values_), widened(values_, shape_.element),
                  tolerance),
          compare_columns(),
          compare("residual keys", memory_.download(device.residual_keys, residual_keys_.size()),
                  residual_keys_, 1e-4),
          compare("residual values",
                  memory_.download(device.residual_values, residual_values_.size()),
                  residual_values_, 1e-4),
          compare("counts", memory_.download(device.counts, counts_.size()), counts_, 0)}) {
      if (!difference.empty()) {
        return difference;
      }
    }
    const float expected = before_ + static_cast<float>(leaving * shape_.num_kv_heads);
    return shape_.layout.num_residual == 0 || merged() == expected
               ? ""
               : "residual slots stand for " + std::to_string(merged()) + " tokens, expected " +
                     std::to_string(expected);
  }

  BudgetCache device, host;

 private:
  float merged() const { return std::accumulate(counts_.begin(), counts_.end() - 1, 0.0f); }
  std::vector<float> numbers(const void* from, const std::vector<std::uint16_t>& like) const {
    return widened(memory_.download(static_cast<const std::uint16_t*>(from), like.size()),
                   shape_.element);
  }
  std::string compare_columns() const {
    if (!shape_.has_scores) {
      return {};
    }
    const std::string scores =
        compare("scores", memory_.download(device.scores, scores_.size()), scores_, 0.01);
    return memory_.download(device.positions, positions_.size()) == positions_ ? scores
                                                                               : "positions differ";
  }

  KernelMemory& memory_;
  BudgetShape shape_;
  std::vector<std::uint16_t> keys_, values_;
  std::vector<float> scores_, residual_keys_, residual_values_, counts_;
  std::vector<std::int32_t> positions_;
  float before_ = 0;
};

constexpr int kSequences = 2, kFirst = 3;  // tokens of the second sequence before the first step

struct BudgetResult {
  std::string difference;              // empty, or what differs from the reference
  std::vector<std::uint16_t> outputs;  // of every step
};

// Without caches and what changes from step to step. stride: of products.
BudgetStep new_step(const BudgetShape& shape, KernelMemory& memory, int stride) {
  const auto heads = static_cast<std::size_t>(kSequences * shape.num_heads);
  const std::vector<std::uint32_t> none(static_cast<std::size_t>(kSequences * shape.num_kv_heads));
  return {
      .num_sequences = kSequences,
      .num_heads = shape.num_heads,
      .num_kv_heads = shape.num_kv_heads,
      .head_dim = shape.head_dim,
      .element = shape.element,
      .scale = 0.3f,
      .softcap = shape.softcap,
      .decay = shape.decay,
      .demotion = shape.demotion,
      .partials =
          unwritten_partials(memory, kSequences, shape.num_parts, shape.num_heads, shape.head_dim),
      .arrived = shape.num_parts > 1 ? memory.upload(none) : nullptr,
      .products = memory.unwritten<float>(heads * static_cast<std::size_t>(stride)),
      .products_stride = shape.has_scores ? stride : 0,
      .output = memory.unwritten<std::uint16_t>(heads * static_cast<std::size_t>(shape.head_dim))};
}

// Empty, or which counter a step has left.
std::string check_counters(const BudgetStep& step, KernelMemory& memory) {
  if (step.arrived == nullptr) {
    return {};
  }
  const auto count = static_cast<std::size_t>(step.num_sequences * step.num_kv_heads);
  for (const std::uint32_t arrived : memory.download(step.arrived, count)) {
    if (arrived != 0) {
      return "a counter is left at " + std::to_string(arrived);
    }
  }
  return {};
}

BudgetResult budget_case(const BudgetShape& shape, KernelMemory& memory, CacheKernels& kernels) {
  const int capacity = kFirst + shape.steps;  // of the second, whose budget is as large
  CaseCache full(memory, shape, shape.layout.rows(), 100);
  BudgetShape wide = shape;
  wide.layout.num_sinks = capacity;
  CaseCache growing(memory, wide, capacity, 200);
  BudgetStep device = new_step(shape, memory, std::max(capacity, shape.layout.rows()) + 1);
  device.caches = memory.upload(std::vector<BudgetCache>{full.device, growing.device});
  std::vector<std::uint16_t> output(
      static_cast<std::size_t>(kSequences * shape.num_heads * shape.head_dim));
  const std::vector<BudgetCache> host_caches = {full.host, growing.host};
  BudgetStep host = device;
  host.caches = host_caches.data();
  host.output = output.data();
  BudgetResult result;
  for (int step = 0; step < shape.steps; ++step) {
    const auto numbers = [&](int of_heads, unsigned seed) {
      return narrowed(case_numbers(kSequences * of_heads * shape.head_dim,
                                   seed + 10 * static_cast<unsigned>(step)),
                      shape.element);
    };
    const auto query = numbers(shape.num_heads, 1), key = numbers(shape.num_kv_heads, 2),
               value = numbers(shape.num_kv_heads, 3);
    const std::vector<std::int32_t> num_tokens = {shape.layout.budget() + 1 + step, kFirst + step};
    host.query = query.data(), device.query = memory.upload(query);
    host.new_key = key.data(), device.new_key = memory.upload(key);
    host.new_value = value.data(), device.new_value = memory.upload(value);
    host.num_tokens = num_tokens.data(), device.num_tokens = memory.upload(num_tokens);
    budget_step_reference(host);
    kernels.run(device);
    const auto found =
        memory.download(static_cast<const std::uint16_t*>(device.output), output.size());
    result.outputs.insert(result.outputs.end(), found.begin(), found.end());
    result.difference =
        compare("output of step " + std::to_string(step), widened(found, shape.element),
                widened(output, shape.element), 2 * case_tolerance(shape.element));
    if (!result.difference.empty()) {
      return result;
    }
  }
  for (const std::string& difference : {full.check(shape.layout.num_context > 0 ? shape.steps : 0),
                                        growing.check(0), check_counters(device, memory)}) {
    if (!difference.empty()) {
      result.difference = difference;
      break;
    }
  }
  return result;
}

}  // namespace

std::vector<CacheCase> budget_cases() {
  std::vector<CacheCase> cases;
  const auto add = [&](const std::string& name, const BudgetShape& shape) {
    cases.push_back({name, [shape](KernelMemory& memory, CacheKernels& kernels) {
                       return budget_case(shape, memory, kernels).difference;
                     }});
  };
  add("one_residual_slot", {.layout = {0, 5, 4, 1}});
  add("several_residual_slots", {.layout = {0, 6, 4, 4}});
  add("as_released", {.layout = {0, 5, 3, 2}, .demotion = Demotion::kReleased});
  add("sinks_and_softcap", {.layout = {3, 40, 30, 1}, .num_parts = 3, .softcap = 2});
  add("heavy_hitters", {.layout = {0, 6, 6, 0}, .decay = 1});
  add("sinks_and_ring_alone", {.layout = {2, 0, 7, 0}, .has_scores = false});
  add("one_query_head_each", {.layout = {0, 4, 2, 1}, .num_heads = 2, .head_dim = 64});
  add("nine_query_heads_each",
      {.layout = {0, 4, 2, 1}, .num_heads = 9, .num_kv_heads = 1, .head_dim = 128, .steps = 8});
  add("heads_of_256_channels", {.layout = {1, 4, 3, 1}, .head_dim = 256, .steps = 8});
  add("one_part", {.layout = {0, 5, 4, 1}, .num_parts = 1});
  add("parts_without_rows", {.layout = {0, 60, 30, 1}, .num_parts = 5, .steps = 8});
  add("bfloat16", {.layout = {0, 5, 4, 1}, .element = DeviceElement::kBFloat16, .head_dim = 64});
  return cases;
}

std::vector<std::uint16_t> budget_outputs(KernelMemory& memory, CacheKernels& kernels) {
  const BudgetShape shape{.layout = {2, 90, 60, 2}, .num_parts = 5, .steps = 12};
  return budget_case(shape, memory, kernels).outputs;
}

}  // namespace kvc::testing
