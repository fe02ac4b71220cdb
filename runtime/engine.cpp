#include "runtime/engine.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "core/checkpoint.h"
#include "core/error.h"
#include "model/config.h"
#include "model/weights.h"
#include "runtime/compression/expansion.h"
#include "runtime/plan_source.h"
#include "runtime/policies/policy_check.h"
#include "runtime/policies/principal_policy.h"
#include "runtime/reuse/prompt_reuse.h"
#include "runtime/store/element_type.h"

namespace kvc {

namespace {

constexpr std::int64_t kPageTokens = 16;

// For what the cache stores as numbers: under integer types those of `compute` if it has 16 bits.
at::ScalarType scalar_type_of(KvDtype dtype, at::ScalarType compute) {
  switch (dtype) {
    case KvDtype::kFloat32:
      return at::kFloat;
    case KvDtype::kBFloat16:
      return at::kBFloat16;
    case KvDtype::kFloat16:
      return at::kHalf;
    default:
      return compute == at::kFloat ? at::kHalf : compute;
  }
}

// Few channels under one scale cost as much as 16-bit numbers.
void check_integer(KvDtype dtype, const ModelConfig& config, std::int64_t page_tokens) {
  constexpr std::int64_t kLeastChannels = 8;
  KVC_CHECK(config.mla || config.head_dim % kLeastChannels == 0,
            "KV cache of {}: heads of {} channels, expected a multiple of {}; use float16",
            to_string(dtype), config.head_dim, kLeastChannels);
  KVC_CHECK(page_tokens % kQuantisedTokens == 0,
            "KV cache of {}: pages of {} tokens, expected a multiple of {}", to_string(dtype),
            page_tokens, kQuantisedTokens);
}

std::string name_of(at::ScalarType type) {
  return type == at::kBFloat16 ? "bfloat16" : type == at::kHalf ? "float16" : "float32";
}

// Multiplications that rebuild keys in a step, of the layer that has most of them.
std::int64_t rebuilding_work(const KvCache& cache) {
  const KvPlan& plan = cache.plan();
  const std::vector<GroupTokens> tokens = cache.tokens();
  std::int64_t most = 0;
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    const int group = static_cast<int>(i);
    const std::int64_t rank =
        plan.groups[i].split_kv ? plan.groups[i].key_rank : plan.groups[i].rank;
    most = std::max(
        most, (latent_rows_of(plan, group, tokens[i]) - expanded_rows(cache.group(group))) * rank *
                  plan.kv_dim());
  }
  return most;
}

}  // namespace

CacheTypes cache_types(const Checkpoint& checkpoint, const ModelConfig& config,
                       const EngineOptions& options) {
  CacheTypes types;
  types.compute =
      options.dtype.empty() ? storage_dtype(checkpoint, config) : parse_scalar_type(options.dtype);
  types.kv = parse_kv_dtype(options.kv_dtype.empty() ? name_of(types.compute) : options.kv_dtype);
  const bool integer = is_integer(types.kv);
  const bool coded = !plan_of(checkpoint, config).coded.empty();
  types.page_tokens =
      options.page_tokens.value_or(integer || coded ? kQuantisedTokens : kPageTokens);
  KVC_CHECK(!coded || types.page_tokens % kQuantisedTokens == 0,
            "KV cache of coded layers: pages of {} tokens, expected a multiple of {}",
            types.page_tokens, kQuantisedTokens);
  if (integer) {
    check_integer(types.kv, config, types.page_tokens);
  }
  return types;
}

Engine::Engine() = default;
Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;

Engine Engine::load(const std::filesystem::path& directory, const EngineOptions& options) {
  const Checkpoint checkpoint = Checkpoint::open(directory);
  const ModelConfig config = read_model_config(checkpoint);
  const CacheTypes types = cache_types(checkpoint, config, options);
  Engine engine;
  engine.plan_ = std::make_shared<const KvPlan>(
      with_selective(plan_of(checkpoint, config), options.selective, options.policy, config));
  check_generated_block(*engine.plan_, types.kv);
  check_token_policy(options.policy, *engine.plan_, config, types.kv);
  engine.policy_ = std::make_shared<const TokenPolicy>(options.policy);
  engine.decoder_ =
      std::make_shared<Decoder>(checkpoint, types.compute, replaced_layers(*engine.plan_),
                                parse_weight_type(options.weight_dtype));
  engine.factors_ = load_kv_factors(checkpoint, *engine.plan_, config, types.compute);
  engine.kv_dtype_ = types.kv;
  engine.pool_ = std::make_shared<KvPool>(types.page_tokens);
  engine.prefill_chunk_ = options.prefill_chunk;
  if (options.time_parts) {
    engine.part_times_ = std::make_unique<PartTimes>();
  }
  if (options.memory_bytes) {
    engine.budget_.emplace(*options.memory_bytes, engine.store_options(), engine.kv_dtype_);
  }
  if (!options.reuse.donors.empty()) {
    engine.start_reuse(checkpoint, types, options);
  }
  return engine;
}

Engine Engine::with_part(const Engine& original, const Engine& converted, const LayerRange& part) {
  Engine engine;
  engine.plan_ = std::make_shared<const KvPlan>(with_part_only(*converted.plan_, part));
  engine.policy_ = converted.policy_;
  engine.decoder_ = original.decoder_;
  engine.factors_ = factors_of(converted.factors_, *converted.plan_, part);
  engine.kv_dtype_ = converted.kv_dtype_;
  engine.pool_ = std::make_shared<KvPool>(converted.pool_->page_tokens());
  engine.prefill_chunk_ = converted.prefill_chunk_;
  return engine;
}

std::int64_t Engine::weight_bytes() const { return decoder_->weight_bytes() + factors_.bytes(); }

bool Engine::has_cache_of_compute_type() const {
  return kv_dtype_ == parse_kv_dtype(name_of(decoder_->dtype()));
}

bool Engine::keeps_what_prompts_read() const {
  return policy_->is_full() && plan_->coded.empty() && !plan_->paired &&
         std::ranges::all_of(plan_->groups, &LatentGroup::replaces_projections);
}

bool Engine::continues_as_prompts() const {
  return codes_prompts(*plan_) || (keeps_what_prompts_read() && has_cache_of_compute_type());
}

bool Engine::reads_prompts_exactly() const {
  return plan_->compression.prefill == PrefillMode::kExact && !policy_->compress_chunks &&
         !config().mla && std::ranges::count(replaced_layers(*plan_), true) == 0;
}

StoreOptions Engine::store_options() const {
  return {.pool = pool_,
          .dtype = scalar_type_of(kv_dtype_, decoder_->dtype()),
          .codes = codes_of(kv_dtype_)};
}

KvCache Engine::new_cache() const { return {plan_, store_options(), policy_}; }

Sequence Engine::new_sequence() const { return Sequence(std::make_unique<KvCache>(new_cache())); }

void check_token_ids(const Engine::Ids& ids, std::int64_t vocab_size) {
  for (std::size_t sequence = 0; sequence < ids.size(); ++sequence) {
    for (const std::int64_t id : ids[sequence]) {
      KVC_CHECK(id >= 0 && id < vocab_size,
                "sequence {}: token id {} is outside the vocabulary of {}", sequence, id,
                vocab_size);
    }
  }
}

void Engine::check_call(const std::vector<Sequence*>& sequences, const Ids& ids) const {
  KVC_CHECK(sequences.size() == ids.size() && !ids.empty(), "{} sequences with ids for {}",
            sequences.size(), ids.size());
  check_token_ids(ids, config().vocab_size);
  for (std::size_t sequence = 0; sequence < ids.size(); ++sequence) {
    KVC_CHECK(!ids[sequence].empty(), "sequence {}: no tokens; pass at least one", sequence);
    check_coded_length(sequences[sequence]->cache_->num_tokens() +
                       static_cast<std::int64_t>(ids[sequence].size()));
  }
}

// A text that outgrows longrope's original length has other keys and values: its tiles would have to be coded anew.
void Engine::check_coded_length(std::int64_t num_tokens) const {
  if (!codes_prompts(*plan_)) {
    return;
  }
  for (const RopeConfig& rope : config().ropes) {
    const auto original = static_cast<std::int64_t>(rope.original_max_position_embeddings);
    KVC_CHECK(
        rope.type != RopeType::kLongRope || num_tokens <= original,
        "{} tokens: the conversion reads prompts through codes (--prefill coded), and angles of "
        "longrope change after {} tokens; shorten the text, or convert without --prefill",
        num_tokens, original);
  }
}

std::vector<std::int64_t> Engine::lengths_of(const Ids& ids) {
  std::vector<std::int64_t> lengths;
  for (const auto& sequence : ids) {
    lengths.push_back(static_cast<std::int64_t>(sequence.size()));
  }
  return lengths;
}

std::vector<KvCache*> Engine::caches_of(const std::vector<Sequence*>& sequences) {
  std::vector<KvCache*> caches;
  for (Sequence* sequence : sequences) {
    caches.push_back(sequence->cache_.get());
  }
  return caches;
}

// Multiplications of one layer: weights times tokens, every query with every cached token, latents.
std::int64_t Engine::layer_work(const std::vector<KvCache*>& caches,
                                const std::vector<std::int64_t>& lengths) const {
  const std::int64_t weights =
      config().hidden_size *
      (2 * config().q_dim() + 2 * config().kv_dim() + 3 * config().intermediate_size);
  std::int64_t work = 0;
  for (std::size_t sequence = 0; sequence < caches.size(); ++sequence) {
    const std::int64_t length = lengths[sequence];
    work += length * (weights + 2 * config().q_dim() * (caches[sequence]->num_tokens() + length));
    work += rebuilding_work(*caches[sequence]);
  }
  return work;
}

CompressionContext Engine::compression() const {
  return {*decoder_, factors_, kv_dtype_, pool_->page_tokens()};
}

// How many tokens fit before longrope's long factors apply; the largest number if they already do, or never will.
std::int64_t Engine::tokens_until_longrope(const KvCache& cache) const {
  std::int64_t fewest = std::numeric_limits<std::int64_t>::max();
  for (const RopeConfig& rope : config().ropes) {
    const auto original = static_cast<std::int64_t>(rope.original_max_position_embeddings);
    if (rope.type == RopeType::kLongRope && cache.num_tokens() > 0 &&
        cache.num_tokens() <= original) {
      fewest = std::min(fewest, original - cache.num_tokens());
    }
  }
  return fewest;
}

}  // namespace kvc
