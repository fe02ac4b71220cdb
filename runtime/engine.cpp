#include "runtime/engine.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "core/checkpoint.h"
#include "core/error.h"
#include "model/checkpoint_config.h"
#include "model/weights.h"
#include "runtime/compression.h"
#include "runtime/plan_source.h"
#include "runtime/thread_scope.h"

namespace kvc {

// A sequence's ids that are still to be fed, and the logits of those that were.
struct Engine::PendingIds {
  KvCache* cache = nullptr;
  const std::vector<std::int64_t>* ids = nullptr;
  std::size_t done = 0;
  std::vector<at::Tensor> logits;

  bool is_done() const { return done == ids->size(); }
  void add(const at::Tensor& of_chunk, Rows rows) {
    if (rows == Rows::kLast) {
      logits.clear();
    }
    logits.push_back(of_chunk);
  }
  std::vector<std::int64_t> take(std::int64_t at_most) {
    const auto left = static_cast<std::int64_t>(ids->size() - done);
    const auto begin = ids->begin() + static_cast<std::ptrdiff_t>(done);
    const std::int64_t count = std::min(left, at_most);
    done += static_cast<std::size_t>(count);
    return {begin, begin + count};
  }
};

namespace {

constexpr std::int64_t kMinReservedTokens = std::int64_t{1} << 20;

at::ScalarType scalar_type_of(KvDtype dtype) {
  switch (dtype) {
    case KvDtype::kBFloat16:
      return at::kBFloat16;
    case KvDtype::kFloat16:
      return at::kHalf;
    case KvDtype::kFloat32:
      break;
  }
  return at::kFloat;
}

std::string name_of(at::ScalarType type) {
  return type == at::kBFloat16 ? "bfloat16" : type == at::kHalf ? "float16" : "float32";
}

// Row indices of the tokens whose logits a call returns, and how many of each sequence.
std::vector<std::int64_t> last_rows(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> rows;
  std::int64_t end = 0;
  for (const std::int64_t length : lengths) {
    end += length;
    rows.push_back(end - 1);
  }
  return rows;
}

TokenBatch batch_after(const std::vector<KvCache*>& caches, const Engine::Ids& ids) {
  std::vector<std::int64_t> flat, positions;
  TokenBatch batch;
  for (std::size_t sequence = 0; sequence < caches.size(); ++sequence) {
    flat.insert(flat.end(), ids[sequence].begin(), ids[sequence].end());
    for (std::size_t i = 0; i < ids[sequence].size(); ++i) {
      positions.push_back(caches[sequence]->num_tokens() + static_cast<std::int64_t>(i));
    }
    batch.lengths.push_back(static_cast<std::int64_t>(ids[sequence].size()));
  }
  batch.ids = at::tensor(flat, at::kLong);
  batch.positions = at::tensor(positions, at::kLong);
  return batch;
}

// Multiplications of one layer: weights times tokens, and every query with every cached token.
std::int64_t layer_work(const ModelConfig& config, const std::vector<KvCache*>& caches,
                        const TokenBatch& batch) {
  const std::int64_t weights = config.hidden_size * (2 * config.q_dim() + 2 * config.kv_dim() +
                                                     3 * config.intermediate_size);
  std::int64_t work = 0;
  for (std::size_t sequence = 0; sequence < caches.size(); ++sequence) {
    const std::int64_t length = batch.lengths[sequence];
    work += length * (weights + 2 * config.q_dim() * (caches[sequence]->num_tokens() + length));
  }
  return work;
}

}  // namespace

Engine Engine::load(const std::filesystem::path& directory, const EngineOptions& options) {
  const Checkpoint checkpoint = Checkpoint::open(directory);
  const ModelConfig config = read_model_config(checkpoint);
  const at::ScalarType dtype =
      options.dtype.empty() ? storage_dtype(checkpoint, config) : parse_scalar_type(options.dtype);
  Engine engine;
  engine.plan_ = std::make_shared<const KvPlan>(plan_of(checkpoint, config));
  engine.decoder_ = std::make_unique<Decoder>(checkpoint, dtype, replaced_layers(*engine.plan_));
  engine.factors_ = load_latent_factors(checkpoint, *engine.plan_, config.hidden_size, dtype);
  engine.kv_dtype_ = parse_kv_dtype(options.kv_dtype.empty() ? name_of(dtype) : options.kv_dtype);
  engine.allocator_ = std::make_shared<KvAllocator>(options.page_tokens);
  return engine;
}

std::int64_t Engine::weight_bytes() const { return decoder_->weight_bytes() + factors_.bytes(); }

KvCache Engine::new_cache() const {
  const StoreOptions options{
      .allocator = allocator_,
      .dtype = scalar_type_of(kv_dtype_),
      .max_tokens = std::max(kMinReservedTokens, 2 * config().max_position_embeddings)};
  return {plan_, options};
}

Sequence Engine::new_sequence() const { return Sequence(std::make_unique<KvCache>(new_cache())); }

void Engine::check_call(const std::vector<Sequence*>& sequences, const Ids& ids) const {
  KVC_CHECK(sequences.size() == ids.size() && !ids.empty(), "{} sequences with ids for {}",
            sequences.size(), ids.size());
  for (std::size_t sequence = 0; sequence < ids.size(); ++sequence) {
    KVC_CHECK(!ids[sequence].empty(), "sequence {}: no tokens; pass at least one", sequence);
    for (const std::int64_t id : ids[sequence]) {
      KVC_CHECK(id >= 0 && id < config().vocab_size,
                "sequence {}: token id {} is outside the vocabulary of {}", sequence, id,
                config().vocab_size);
    }
  }
}

std::vector<at::Tensor> Engine::forward(const std::vector<KvCache*>& caches, const Ids& ids,
                                        Rows rows, Pass pass) const {
  const TokenBatch batch = batch_after(caches, ids);
  const ThreadScope threads(layer_work(config(), caches, batch));
  CachedAttention attention(*decoder_, *plan_, factors_, caches, pass);
  at::Tensor hidden_states = decoder_->forward(batch, attention);
  for (std::size_t sequence = 0; sequence < caches.size(); ++sequence) {
    caches[sequence]->add_tokens(ids[sequence]);
  }
  if (rows == Rows::kAll) {
    return decoder_->logits(hidden_states).split_with_sizes(batch.lengths);
  }
  if (hidden_states.size(0) > static_cast<std::int64_t>(caches.size())) {
    hidden_states = hidden_states.index_select(0, at::tensor(last_rows(batch.lengths), at::kLong));
  }
  return decoder_->logits(hidden_states).split(1);
}

void Engine::compress_oldest(std::int64_t count, KvCache& cache) const {
  compress(*decoder_, factors_, kv_dtype_, allocator_->page_tokens(), count, cache);
}

std::vector<at::Tensor> Engine::read(const std::vector<KvCache*>& caches, const Ids& ids,
                                     Rows rows) const {
  std::vector<at::Tensor> logits = forward(caches, ids, rows, Pass::kPrefill);
  for (KvCache* cache : caches) {
    compress_oldest(
        std::max<std::int64_t>(0, undecided_tokens(*cache) - plan_->policy.window_tokens), *cache);
  }
  return logits;
}

// Tokens that can be appended before longrope's long factors set in; none are left of that number where
// they have, or never do.
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

// A text that outgrows longrope's original length has other keys and values in every layer but the first:
// what is cached is dropped, and all of it is read with the long factors. Logits of the new ids.
at::Tensor Engine::read_again(KvCache& cache, const std::vector<std::int64_t>& ids,
                              Rows rows) const {
  std::vector<std::int64_t> all = cache.ids();
  all.insert(all.end(), ids.begin(), ids.end());
  cache = new_cache();
  const at::Tensor logits = read({&cache}, {all}, rows).front();
  const std::int64_t count = std::min(logits.size(0), static_cast<std::int64_t>(ids.size()));
  return logits.narrow(0, logits.size(0) - count, count);
}

std::vector<at::Tensor> Engine::prefill(const std::vector<Sequence*>& sequences, const Ids& ids,
                                        Rows rows) const {
  const c10::InferenceMode guard;
  check_call(sequences, ids);
  std::vector<KvCache*> caches;
  bool outgrows = false;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    caches.push_back(sequences[i]->cache_.get());
    outgrows =
        outgrows || tokens_until_longrope(*caches[i]) < static_cast<std::int64_t>(ids[i].size());
  }
  if (!outgrows) {
    return read(caches, ids, rows);
  }
  std::vector<at::Tensor> logits;
  for (std::size_t i = 0; i < caches.size(); ++i) {
    const bool again = tokens_until_longrope(*caches[i]) < static_cast<std::int64_t>(ids[i].size());
    logits.push_back(again ? read_again(*caches[i], ids[i], rows)
                           : read({caches[i]}, {ids[i]}, rows).front());
  }
  return logits;
}

std::vector<at::Tensor> Engine::extend(const std::vector<Sequence*>& sequences, const Ids& ids,
                                       Rows rows) const {
  const c10::InferenceMode guard;
  check_call(sequences, ids);
  std::vector<PendingIds> pending;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    pending.push_back({sequences[i]->cache_.get(), &ids[i], 0, {}});
  }
  while (extend_round(pending, rows)) {
  }
  std::vector<at::Tensor> outputs;
  for (PendingIds& sequence : pending) {
    outputs.push_back(sequence.logits.size() == 1 ? sequence.logits.front()
                                                  : at::cat(sequence.logits));
  }
  return outputs;
}

// Feeds every sequence the ids up to where its next block leaves the window; false if none has any left.
bool Engine::extend_round(std::vector<PendingIds>& pending, Rows rows) const {
  std::vector<PendingIds*> active;
  std::vector<KvCache*> caches;
  Ids chunks;
  bool any = false;
  for (PendingIds& sequence : pending) {
    if (sequence.is_done()) {
      continue;
    }
    any = true;
    const std::int64_t until_longrope = tokens_until_longrope(*sequence.cache);
    if (until_longrope == 0) {
      sequence.add(read_again(*sequence.cache, sequence.take(1), rows), rows);
      continue;
    }
    active.push_back(&sequence);
    caches.push_back(sequence.cache);
    chunks.push_back(sequence.take(std::min(tokens_until_block(*sequence.cache), until_longrope)));
  }
  if (active.empty()) {
    return any;
  }
  const std::vector<at::Tensor> logits = forward(caches, chunks, rows, Pass::kExtend);
  for (std::size_t i = 0; i < active.size(); ++i) {
    if (tokens_until_block(*caches[i]) <= 0) {
      compress_oldest(plan_->policy.block_tokens, *caches[i]);
    }
    active[i]->add(logits[i], rows);
  }
  return true;
}

}  // namespace kvc
