// Steps under a budget against budget_step_reference(), from an empty cache on until slots have been merged many
// times over.
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
  int num_heads = 4, num_kv_heads = 2, head_dim = 40, steps = 30;
  float decay = 0.98f;
};

constexpr int kSequences = 2;

// A cache on both sides.
class BudgetCache {
 public:
  BudgetCache(KernelMemory& memory, const BudgetShape& shape) : memory_(memory), shape_(shape) {
    const auto heads = static_cast<std::size_t>(kSequences * shape.num_kv_heads);
    const std::size_t slots = heads * static_cast<std::size_t>(shape.layout.slots());
    keys_.resize(slots * static_cast<std::size_t>(shape.head_dim));
    values_ = keys_;
    scores_.resize(slots);
    counts_.resize(heads * static_cast<std::size_t>(shape.layout.num_residual) + 1);
    output_.resize(static_cast<std::size_t>(kSequences * shape.num_heads * shape.head_dim));
    device_ = {.layout = shape.layout,
               .num_sequences = kSequences,
               .num_heads = shape.num_heads,
               .num_kv_heads = shape.num_kv_heads,
               .head_dim = shape.head_dim,
               .element = shape.element,
               .keys = memory.unwritten<std::uint16_t>(keys_.size()),
               .values = memory.unwritten<std::uint16_t>(values_.size()),
               .scores = memory.unwritten<float>(scores_.size()),
               .counts = memory.unwritten<float>(counts_.size()),
               .scale = 0.3f,
               .alpha = 0.6f,
               .decay = shape.decay,
               .demotion = shape.demotion,
               .output = memory.unwritten<std::uint16_t>(output_.size())};
    host_ = device_;
    host_.keys = keys_.data();
    host_.values = values_.data();
    host_.scores = scores_.data();
    host_.counts = counts_.data();
    host_.output = output_.data();
  }

  // Sequence 1 is `lag` tokens behind: its first steps meet an empty cache again.
  std::string step(CacheKernels& kernels, int index) {
    const auto numbers = [&](int heads, unsigned seed) {
      return narrowed(case_numbers(kSequences * heads * shape_.head_dim,
                                   seed + 10 * static_cast<unsigned>(index)),
                      shape_.element);
    };
    const auto query = numbers(shape_.num_heads, 1), key = numbers(shape_.num_kv_heads, 2),
               value = numbers(shape_.num_kv_heads, 3);
    const int lag = 3;
    const std::vector<std::int32_t> num_tokens = {index, index < lag ? 0 : index - lag};
    set(host_, query.data(), key.data(), value.data(), num_tokens.data());
    set(device_, memory_.upload(query), memory_.upload(key), memory_.upload(value),
        memory_.upload(num_tokens));
    budget_step_reference(host_);
    kernels.run(device_);
    return compare("output of step " + std::to_string(index), download(device_.output, output_),
                   floats(output_), 2 * case_tolerance(shape_.element));
  }

  std::string check() const {
    const double tolerance = 2 * case_tolerance(shape_.element);
    for (const std::string& difference :
         {compare("keys", held(download(device_.keys, keys_)), held(floats(keys_)), tolerance),
          compare("values", held(download(device_.values, values_)), held(floats(values_)),
                  tolerance),
          compare("scores", memory_.download(device_.scores, scores_.size()), scores_, 0.01),
          check_counts()}) {
      if (!difference.empty()) {
        return difference;
      }
    }
    return {};
  }

 private:
  static void set(BudgetStep& params, const void* query, const void* key, const void* value,
                  const std::int32_t* num_tokens) {
    params.query = query;
    params.new_key = key;
    params.new_value = value;
    params.num_tokens = num_tokens;
  }
  std::vector<float> floats(const std::vector<std::uint16_t>& bits) const {
    std::vector<float> numbers;
    for (const std::uint16_t x : bits) {
      numbers.push_back(shape_.element == DeviceElement::kBFloat16 ? to_float(BFloat16{x})
                                                                   : to_float(Float16{x}));
    }
    return numbers;
  }
  std::vector<float> download(const void* from, const std::vector<std::uint16_t>& like) const {
    return floats(memory_.download(static_cast<const std::uint16_t*>(from), like.size()));
  }
  static std::vector<float> held(std::vector<float> numbers) { return numbers; }
  // The cache is full: residual slots stand for all tokens that the others do not hold.
  std::string check_counts() const {
    const BudgetLayout& layout = shape_.layout;
    if (layout.num_residual == 0) {
      return {};
    }
    std::vector<float> counts = memory_.download(device_.counts, counts_.size());
    counts.pop_back();
    std::vector<float> expected(counts_.begin(), counts_.end() - 1);
    const auto per_head = static_cast<std::ptrdiff_t>(layout.num_residual);
    const float merged = std::accumulate(counts.begin(), counts.begin() + per_head, 0.0f);
    const int others = shape_.steps - layout.num_context - layout.num_ring;
    if (merged != static_cast<float>(others)) {
      return "residual slots stand for " + std::to_string(merged) + " tokens, expected " +
             std::to_string(others);
    }
    return compare("counts", counts, expected, 0);
  }

  KernelMemory& memory_;
  BudgetShape shape_;
  std::vector<std::uint16_t> keys_, values_, output_;
  std::vector<float> scores_, counts_;
  BudgetStep device_, host_;
};

std::string budget_case(const BudgetShape& shape, KernelMemory& memory, CacheKernels& kernels) {
  BudgetCache cache(memory, shape);
  for (int step = 0; step < shape.steps; ++step) {
    const std::string difference = cache.step(kernels, step);
    if (!difference.empty()) {
      return difference;
    }
  }
  return cache.check();
}

}  // namespace

std::vector<CacheCase> budget_cases() {
  std::vector<CacheCase> cases;
  const auto add = [&](const std::string& name, const BudgetShape& shape) {
    cases.push_back({name, [shape](KernelMemory& memory, CacheKernels& kernels) {
                       return budget_case(shape, memory, kernels);
                     }});
  };
  add("one_residual_slot", {.layout = {1, 5, 4}});
  add("several_residual_slots", {.layout = {3, 6, 4}});
  add("as_released", {.layout = {2, 5, 3}, .demotion = Demotion::kReleased});
  add("without_context", {.layout = {2, 0, 3}});
  add("heavy_hitters", {.layout = {0, 6, 6}, .decay = 1});
  add("one_query_head_each",
      {.layout = {1, 4, 2}, .num_heads = 2, .num_kv_heads = 2, .head_dim = 32});
  add("nine_query_heads_each",
      {.layout = {1, 4, 2}, .num_heads = 9, .num_kv_heads = 1, .head_dim = 70, .steps = 12});
  add("bfloat16", {.layout = {1, 5, 4}, .element = DeviceElement::kBFloat16, .head_dim = 64});
  return cases;
}

}  // namespace kvc::testing
