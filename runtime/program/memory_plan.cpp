#include "runtime/program/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "core/arithmetic.h"
#include "core/error.h"
#include "core/interrupt.h"
#include "model/cache_plan.h"
#include "model/compute_place.h"
#include "model/config.h"
#include "model/weight_forecast.h"
#include "runtime/compression/expansion.h"
#include "runtime/compression/kv_factors.h"
#include "runtime/memory/memory_budget.h"
#include "runtime/memory/memory_forecast.h"
#include "runtime/memory/process_forecast.h"
#include "runtime/plan_source.h"
#include "runtime/policies/policy_check.h"
#include "runtime/policies/principal_policy.h"
#include "runtime/reuse/prompt_reuse.h"

namespace kvc {
namespace {

// The caches of a run, from their prompts to their last tokens. Samples and beams count as caches of their own, although they
// share a prompt's pages. Where prompts may be read with a similar one's cache (`reuses`), each counts as one that is: its
// rows have positions and are never codes.
class RunForecast {
 public:
  RunForecast(const KvPlan& plan, const TokenPolicy& policy, const CacheTypes& types, bool reuses,
              const Prompts& prompts, const GenerateOptions& generate)
      : plan_(plan), policy_(policy), types_(types), reuses_(reuses) {
    const auto by_length = [](const auto& a, const auto& b) { return a.size() < b.size(); };
    const auto longest = std::ranges::max_element(prompts.ids, by_length);
    for (auto ids = prompts.ids.begin(); ids != prompts.ids.end(); ++ids) {
      const auto length = static_cast<std::int64_t>(ids->size());
      const std::int64_t prefill =
          generate.prefill_tokens > 0 ? std::min(length, generate.prefill_tokens) : length;
      // As make_room asks for it.
      CacheForecast cache(plan, types.kv, types.page_tokens, MergeSpread::kNone, policy);
      const std::int64_t read = cache.read(prefill);
      reading_ += std::max(read, retained_bytes(prefill));
      // Beams of one prompt are searched at a time, beside the other prompts.
      const bool is_beams = generate.num_beams > 1, grows = !is_beams || ids == longest;
      const std::int64_t copies = !grows ? 1 : is_beams ? generate.num_beams : generate.num_samples;
      // The last token is never fed back.
      const std::int64_t more = grows ? std::max<std::int64_t>(0, generate.max_new_tokens - 1) : 0;
      for (std::int64_t copy = 0; copy < copies; ++copy) {
        caches_.push_back(cache);
      }
      left_.resize(caches_.size(), length - prefill + more);
    }
  }

  std::int64_t reading() const { return reading_; }  // most while prompts are read
  std::int64_t num_caches() const { return static_cast<std::int64_t>(caches_.size()); }

  // Feeds the next block's tokens; false when there are none left. Most bytes on the way.
  bool advance(std::int64_t& most) {
    bool any = false;
    most = 0;
    for (std::size_t i = 0; i < caches_.size(); ++i) {
      const std::int64_t count = std::min(left_[i], plan_.compression.block_tokens);
      any = any || count > 0;
      const std::int64_t grown = caches_[i].extend(count);
      most += std::max(grown, retained_bytes(caches_[i].num_tokens()));
      left_[i] -= count;
    }
    return any;
  }

  // Groups of all sequences whose rebuilt keys and values fit beside the caches, and their bytes.
  struct Expanded {
    std::int64_t groups = 0, bytes = 0;
  };
  Expanded expanded(std::int64_t limit) const {
    std::int64_t reserve = 0;
    for (const CacheForecast& cache : caches_) {
      CacheForecast next = cache;
      reserve += next.extend(plan_.compression.block_tokens) - cache.bytes();
    }
    Expanded result;
    // Under a token policy tokens come and go.
    for (std::size_t group = 0; policy_.is_full() && group < plan_.groups.size(); ++group) {
      for (const CacheForecast& cache : caches_) {
        const std::int64_t wanted = expansion_bytes(
            plan_, static_cast<int>(group), cache.tokens()[group], types_.kv, types_.page_tokens);
        const std::int64_t room =
            std::max<std::int64_t>(0, limit - bytes() - result.bytes - reserve);
        result.bytes += std::min(wanted, room);
        result.groups += wanted > 0 && wanted <= room ? 1 : 0;
      }
    }
    return result;
  }

  std::int64_t bytes() const {
    return sum([this](const CacheForecast& cache) {
      return std::max(cache.bytes(), retained_bytes(cache.num_tokens()));
    });
  }
  std::int64_t num_tokens() const {
    return sum([](const CacheForecast& cache) { return cache.num_tokens(); });
  }
  std::int64_t original(KvDtype own) const {
    return sum([&](const CacheForecast& cache) {
      return original_allocation(plan_, cache.num_tokens(), types_.page_tokens, own);
    });
  }

 private:
  template <typename Function>
  std::int64_t sum(const Function& of_cache) const {
    std::int64_t total = 0;
    for (const CacheForecast& cache : caches_) {
      total += of_cache(cache);
    }
    return total;
  }

  // Under reuse, where all tokens are retained.
  std::int64_t retained_bytes(std::int64_t num_tokens) const {
    return reuses_ ? plan_.num_layers() *
                         retained_layer_bytes(plan_, num_tokens, types_.kv, types_.page_tokens)
                   : 0;
  }

  const KvPlan& plan_;
  const TokenPolicy& policy_;
  const CacheTypes& types_;
  bool reuses_;
  std::vector<CacheForecast> caches_;
  std::vector<std::int64_t> left_;
  std::int64_t reading_ = 0;
};

struct Totals {
  std::int64_t end = 0;   // most after reading, nothing rebuilt
  std::int64_t peak = 0;  // most that is in use under the limit
  RunForecast::Expanded expanded;
};

Totals follow(RunForecast& run, std::optional<std::int64_t> limit) {
  Totals totals{.end = run.bytes(), .peak = run.reading(), .expanded = {}};
  for (bool more = true; more;) {
    check_interrupt();
    totals.expanded = limit ? run.expanded(*limit) : RunForecast::Expanded{};
    const std::int64_t in_use = run.bytes() + totals.expanded.bytes;
    std::int64_t most = 0;
    more = run.advance(most);
    totals.end = std::max(totals.end, most);
    const std::int64_t growing = most + totals.expanded.bytes;  // rebuilt ones go where need be
    totals.peak = std::max({totals.peak, in_use, limit ? std::min(*limit, growing) : growing});
  }
  if (limit) {
    KVC_CHECK(
        std::max(run.reading(), totals.end) <= *limit,
        "KV memory: the caches take up to {} bytes, the budget is {}; raise --memory to that, "
        "shorten the text, or store less with --kv-dtype int8 or a smaller --kept-ratio",
        std::max(run.reading(), totals.end), *limit);
  }
  return totals;
}

// Weights and caches, and the most that there is beside these: while prompts are read, or later. Factors are read, so that
// they are counted as they lie in memory.
std::int64_t process_bytes(const RunOptions& options, const Prompts& prompts,
                           const Checkpoint& checkpoint, const ModelConfig& config,
                           const KvPlan& plan, const CacheTypes& types, const RunForecast& run,
                           std::int64_t generating) {
  const std::int64_t programs = program_bytes();
  const std::int64_t weights =
      forecast_weight_bytes(config, types.compute, replaced_layers(plan),
                            parse_weight_type(options.engine.weight_dtype)) +
      load_kv_factors(checkpoint, plan, config, types.compute).bytes();
  PromptSizes sizes;
  for (const auto& ids : prompts.ids) {
    const auto length = static_cast<std::int64_t>(ids.size());
    sizes.all += length;
    sizes.longest = std::max(sizes.longest, length);
  }
  const std::int64_t chunk = options.engine.prefill_chunk;
  sizes.piece = chunk > 0 ? std::min(sizes.all, chunk) : sizes.all;
  const std::int64_t angles =
      angle_bytes(config, plan, types.kv,
                  sizes.longest + std::max<std::int64_t>(0, options.generate.max_new_tokens));
  return programs + weights + angles +
         std::max(run.reading() +
                      reading_bytes(config, reading_types(config, types.compute), sizes) +
                      compression_bytes(config, plan, options.engine.policy, sizes),
                  generating);
}

MemoryPlan cpu_memory_plan(const RunOptions& options, const Prompts& prompts) {
  const Checkpoint checkpoint = Checkpoint::open(options.model);
  const ModelConfig config = read_model_config(checkpoint);
  check_token_ids(prompts.ids, config.vocab_size);
  const KvPlan plan = with_selective(plan_of(checkpoint, config), options.engine.selective,
                                     options.engine.policy, config);
  const CacheTypes types = cache_types(checkpoint, config, options.engine);
  check_generated_block(plan, types.kv);
  check_token_policy(options.engine.policy, plan, config, types.kv);
  check_reuse(options.engine.reuse, options.engine.policy, types.kv, config, plan);
  RunForecast run(plan, options.engine.policy, types, !options.engine.reuse.donors.empty(), prompts,
                  options.generate);
  const Totals totals = follow(run, options.engine.memory_bytes);
  return {.kv_dtype = types.kv,
          .tokens = run.num_tokens(),
          .reading = run.reading(),
          .end = totals.end,
          .original = run.original(cache_dtype(config)),
          .expansion = run.expanded(kNever).bytes,
          .limit = options.engine.memory_bytes,
          .expanded_groups = totals.expanded.groups,
          .num_groups = static_cast<std::int64_t>(plan.groups.size()) * run.num_caches(),
          .peak = totals.peak,
          .process = process_bytes(options, prompts, checkpoint, config, plan, types, run,
                                   std::max(totals.end, totals.peak))};
}

}  // namespace

std::int64_t original_allocation(const KvPlan& plan, std::int64_t num_tokens,
                                 std::int64_t page_tokens, KvDtype own) {
  return original_bytes(plan, round_up(num_tokens, page_tokens), own);
}

Json to_json(const MemoryPlan& plan) {
  Json json;
  json["kv_dtype"] = to_string(plan.kv_dtype);
  json["tokens"] = plan.tokens;
  json["reading_bytes"] = plan.reading;
  json["end_bytes"] = plan.end;
  json["original_bytes"] = plan.original;
  json["kept_ratio"] = share_of_original(plan.end, plan.original);
  json["expansion_bytes"] = plan.expansion;
  if (plan.limit) {
    json["memory_bytes"] = *plan.limit;
    json["expanded_groups"] = plan.expanded_groups;
    json["num_groups"] = plan.num_groups;
    json["peak_bytes"] = plan.peak;
  }
  if (plan.process) {
    json["process_bytes"] = *plan.process;
  }
  return json;
}

void print_memory_plan(const RunOptions& options) {
  const Prompts prompts = read_prompts(options);
  const MemoryPlan plan = names_gpu(options.device) ? gpu_memory_plan(options, prompts)
                                                    : cpu_memory_plan(options, prompts);
  if (options.json) {
    fmt::print("{}\n", to_json(plan).dump());
    return;
  }
  fmt::print(
      "KV cache of {} tokens as {}: up to {} bytes while the prompt is read, then up to {} "
      "(kept_ratio {:.3f}){}\n",
      plan.tokens, to_string(plan.kv_dtype), plan.reading, plan.end,
      share_of_original(plan.end, plan.original),
      plan.expansion == 0 ? ""
                          : fmt::format("; keys and values rebuilt from latents would take {} more",
                                        plan.expansion));
  if (plan.limit) {
    fmt::print("within {} bytes: {} of {} groups rebuilt at the end, up to {} bytes in use\n",
               *plan.limit, plan.expanded_groups, plan.num_groups, plan.peak);
  }
  if (plan.process) {
    fmt::print("the process with weights and libraries: about {} bytes\n", *plan.process);
  }
}

}  // namespace kvc
