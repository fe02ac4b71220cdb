// Steps under a budget against budget_step_reference(): one sequence whose rows are laid out, from which tokens leave
// and are merged many times over, beside one whose budget is not used up.
#include <string>
#include <vector>

#include "tests/runtime/kernels/cuda/budget_case.h"

namespace kvc::testing {
namespace {

constexpr int kSequences = 2, kFirst = 3;  // tokens of the second sequence before the first step

struct BudgetResult {
  std::string difference;              // empty, or what differs from the reference
  std::vector<std::uint16_t> outputs;  // of every step
};

// Without caches and what changes from step to step. stride: of products.
BudgetStep new_step(const BudgetShape& shape, KernelBackend& backend, int stride) {
  const auto heads = static_cast<std::size_t>(kSequences * shape.num_heads);
  const std::vector<std::uint32_t> none(static_cast<std::size_t>(kSequences * shape.num_kv_heads));
  return {
      .num_sequences = kSequences,
      .num_heads = shape.num_heads,
      .num_kv_heads = shape.num_kv_heads,
      .head_dim = shape.head_dim,
      .element = shape.element,
      .context = shape.context,
      .scale = 0.3f,
      .softcap = shape.softcap,
      .decay = shape.decay,
      .demotion = shape.demotion,
      .partials =
          unwritten_partials(backend, kSequences, shape.num_parts, shape.num_heads, shape.head_dim),
      .arrived = shape.num_parts > 1 ? backend.upload(none) : nullptr,
      .lowest =
          shape.num_parts > 1 && shape.has_scores
              ? backend.unwritten<Chosen>(none.size() * static_cast<std::size_t>(shape.num_parts))
              : nullptr,
      .products = backend.unwritten<float>(heads * static_cast<std::size_t>(stride)),
      .products_stride = shape.has_scores ? stride : 0,
      .output = backend.unwritten<std::uint16_t>(heads * static_cast<std::size_t>(shape.head_dim))};
}

// Empty, or which counter a step has left.
std::string check_counters(const BudgetStep& step, KernelBackend& backend) {
  if (step.arrived == nullptr) {
    return {};
  }
  const auto count = static_cast<std::size_t>(step.num_sequences * step.num_kv_heads);
  for (const std::uint32_t arrived : backend.download(step.arrived, count)) {
    if (arrived != 0) {
      return "a counter is left at " + std::to_string(arrived);
    }
  }
  return {};
}

BudgetResult budget_case(const BudgetShape& shape, KernelBackend& backend) {
  const int capacity = kFirst + shape.steps;  // of the second, whose budget is as large
  CaseCache full(backend, shape, shape.layout.rows(), 100);
  BudgetShape wide = shape;
  wide.layout.num_sinks = capacity;
  const int codes = shape.num_codes() / shape.num_kv_heads;  // whose room it has, too
  CaseCache growing(backend, wide, capacity + codes, 200);
  BudgetStep device = new_step(shape, backend, std::max(capacity + codes, shape.layout.rows()) + 1);
  device.caches = backend.upload(std::vector<BudgetCache>{full.device, growing.device});
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
    host.query = query.data(), device.query = backend.upload(query);
    host.new_key = key.data(), device.new_key = backend.upload(key);
    host.new_value = value.data(), device.new_value = backend.upload(value);
    host.num_tokens = num_tokens.data(), device.num_tokens = backend.upload(num_tokens);
    budget_step_reference(host);
    backend.run(device);
    const auto found =
        backend.download(static_cast<const std::uint16_t*>(device.output), output.size());
    result.outputs.insert(result.outputs.end(), found.begin(), found.end());
    result.difference =
        compare("output of step " + std::to_string(step), widened(found, shape.element),
                widened(output, shape.element), 2 * case_tolerance(shape.element));
    if (!result.difference.empty()) {
      return result;
    }
  }
  for (const std::string& difference : {full.check(shape.layout.num_context > 0 ? shape.steps : 0),
                                        growing.check(0), check_counters(device, backend)}) {
    if (!difference.empty()) {
      result.difference = difference;
      break;
    }
  }
  return result;
}

}  // namespace

std::vector<KernelCase> budget_cases() {
  std::vector<KernelCase> cases;
  const auto add = [&](const std::string& name, const BudgetShape& shape) {
    cases.push_back(
        {name, [shape](KernelBackend& backend) { return budget_case(shape, backend).difference; }});
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
  add("context_of_int8", {.layout = {2, 40, 20, 2}, .context = DeviceElement::kInt8});
  add("context_of_int4", {.layout = {0, 40, 20, 1},
                          .demotion = Demotion::kReleased,
                          .element = DeviceElement::kBFloat16,
                          .head_dim = 64,
                          .context = DeviceElement::kInt4});
  add("eight_query_heads_of_int4", {.layout = {1, 9, 5, 1},
                                    .num_heads = 8,
                                    .num_kv_heads = 1,
                                    .head_dim = 128,
                                    .steps = 8,
                                    .context = DeviceElement::kInt4});
  add("one_row", {.layout = {0, 0, 1, 0}, .has_scores = false});
  add("one_ranked_row", {.layout = {0, 1, 1, 0}, .num_parts = 1});
  add("rows_of_whole_tiles", {.layout = {0, 40, 24, 1}, .num_parts = 3, .steps = 12});
  add("one_row_more_than_whole_tiles",
      {.layout = {1, 50, 46, 3}, .head_dim = 128, .num_parts = 3, .steps = 12});
  add("sinks_and_a_window_of_several_parts",
      {.layout = {4, 0, 75, 0}, .num_parts = 3, .steps = 12, .has_scores = false});
  add("ties", {.layout = {2, 71, 30, 0},
               .demotion = Demotion::kReleased,
               .num_parts = 4,
               .decay = 1,
               .has_ties = true});
  add("ties_that_newcomers_lose",
      {.layout = {0, 40, 26, 1}, .num_parts = 2, .steps = 12, .decay = 1, .has_ties = true});
  add("more_residual_slots_than_warps", {.layout = {0, 20, 10, 9}});
  add("nine_query_heads_of_256_channels",
      {.layout = {0, 34, 2, 3}, .num_heads = 9, .num_kv_heads = 1, .head_dim = 256, .steps = 4});
  add("seventeen_query_heads_each",
      {.layout = {0, 34, 2, 3}, .num_heads = 17, .num_kv_heads = 1, .steps = 4});
  add("codes_of_several_tiles", {.layout = {3, 70, 40, 2},
                                 .element = DeviceElement::kBFloat16,
                                 .head_dim = 128,
                                 .num_parts = 4,
                                 .steps = 12,
                                 .context = DeviceElement::kInt8});
  add("codes_in_one_part",
      {.layout = {33, 32, 1, 0}, .num_parts = 1, .steps = 12, .context = DeviceElement::kInt4});
  add("bfloat16", {.layout = {0, 5, 4, 1}, .element = DeviceElement::kBFloat16, .head_dim = 64});
  return cases;
}

std::vector<std::uint16_t> budget_outputs(KernelBackend& backend) {
  const BudgetShape shape{.layout = {2, 90, 60, 2}, .num_parts = 5, .steps = 12};
  return budget_case(shape, backend).outputs;
}

}  // namespace kvc::testing
