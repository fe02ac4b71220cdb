// Engine's reading of prompts.
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "runtime/compression/compression.h"
#include "runtime/compression/prompt_compression.h"
#include "runtime/engine.h"
#include "runtime/reuse/prompt_reuse.h"
#include "runtime/thread_scope.h"

namespace kvc {
namespace {

std::int64_t length_of(const std::vector<std::int64_t>& ids) {
  return static_cast<std::int64_t>(ids.size());
}

bool any_depends_on_length(const ModelConfig& config) {
  bool any = false;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    any = any || config.depends_on_length(layer);
  }
  return any;
}

}  // namespace

// A later turn sees keys of the cache, which RoPE that depends on the length turns when they are read, by
// the length that is there: such a turn is not read in pieces. Nor are latents of such a model.
std::vector<PromptPiece> Engine::pieces_of_prompts(const std::vector<KvCache*>& caches,
                                                   const Ids& ids) const {
  const bool by_length = any_depends_on_length(config());
  std::vector<std::int64_t> num_tokens;
  std::vector<bool> whole;
  for (const KvCache* cache : caches) {
    num_tokens.push_back(cache->num_tokens());
    whole.push_back(by_length && (cache->num_tokens() > 0 || config().mla));
  }
  return pieces_of(ids, num_tokens, whole, prefill_chunk_);
}

// For the rows that a call returns.
std::vector<at::Tensor> Engine::prompt_logits(const std::vector<PromptPiece>& pieces,
                                              const std::vector<at::Tensor>& hidden_states,
                                              const Ids& ids, Rows rows) const {
  const PartScope scope(part_times_.get(), Part::kLogits);
  std::vector<at::Tensor> logits(ids.size()), last_states(ids.size());
  std::vector<std::int64_t> done(ids.size(), 0);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const at::Tensor of_piece =
        rows == Rows::kAll ? decoder_->logits(hidden_states[i]) : hidden_states[i];
    std::int64_t first = 0;
    for (std::size_t j = 0; j < pieces[i].sequences.size(); ++j) {
      const std::size_t sequence = pieces[i].sequences[j];
      const std::int64_t count = pieces[i].batch.lengths[j];
      if (rows == Rows::kAll) {
        if (!logits[sequence].defined()) {
          logits[sequence] = at::empty({length_of(ids[sequence]), of_piece.size(1)}, at::kFloat);
        }
        logits[sequence].narrow(0, done[sequence], count).copy_(of_piece.narrow(0, first, count));
      } else {
        last_states[sequence] = of_piece.narrow(0, first + count - 1, 1);
      }
      done[sequence] += count;
      first += count;
    }
  }
  return rows == Rows::kAll ? logits : decoder_->logits(at::cat(last_states)).split(1);
}

// As if the caches of `outgrown` were empty already: they stay as they are if there is no room.
void Engine::make_room_for_prompts(std::vector<KvCache*> caches,
                                   const std::vector<std::int64_t>& lengths,
                                   const std::vector<KvCache*>& outgrown) const {
  KvCache empty = new_cache();
  std::int64_t released = 0;
  for (KvCache* cache : outgrown) {
    released += budget_->own_bytes(*cache);
    std::replace(caches.begin(), caches.end(), cache, &empty);
  }
  budget_->make_room(caches, lengths, true, released);
}

std::vector<at::Tensor> Engine::read(const std::vector<KvCache*>& caches, const Ids& ids, Rows rows,
                                     const Stopped& stopped, Pass pass,
                                     const std::vector<KvCache*>& outgrown) const {
  if (caches.empty()) {
    return {};
  }
  const std::vector<std::int64_t> lengths = lengths_of(ids);
  if (budget_) {
    make_room_for_prompts(caches, lengths, outgrown);
  }
  std::vector<at::Tensor> logits;
  try {
    for (KvCache* cache : outgrown) {
      *cache = new_cache();
    }
    const std::vector<PromptPiece> pieces = pieces_of_prompts(caches, ids);
    std::vector<PromptCompression> compressions;
    for (std::size_t i = 0; i < caches.size() && !reuse_; ++i) {
      compressions.emplace_back(compression(), lengths[i], *caches[i]);
    }
    std::vector<at::Tensor> hidden_states;
    {
      const ThreadScope threads(layer_work(caches, lengths));
      const PartScope scope(part_times_.get(), Part::kModel);
      hidden_states = read_pieces({*decoder_, *plan_, factors_, pass, *policy_}, caches, lengths,
                                  pieces, compressions, stopped, part_times_.get());
      decoder_->rope().forget();  // a later turn's, of all positions that the cache holds
    }
    logits = prompt_logits(pieces, hidden_states, ids, rows);
    for (std::size_t i = 0; i < caches.size(); ++i) {
      if (reuse_) {
        keep_as_donor(ids[i], *caches[i]);
      }
      caches[i]->add_tokens(ids[i]);
    }
  } catch (...) {
    for (KvCache* cache : caches) {  // layers hold different numbers of tokens
      *cache = new_cache();
    }
    throw;
  }
  if (budget_) {
    budget_->use_room(*decoder_, factors_.latent, caches);
  }
  return logits;
}

void Engine::start_reuse(const Checkpoint& checkpoint, const CacheTypes& types,
                         const EngineOptions& options) {
  check_reuse(options.reuse, *policy_, types.kv, config(), *plan_);
  reuse_ = std::make_unique<PromptReuse>(reuse_model(*decoder_),
                                         donor_format(checkpoint, config(), types.compute,
                                                      store_options().dtype, options.weight_dtype),
                                         options.reuse);
}

// With the exact rows of all layers, which are compressed afterwards.
void Engine::keep_as_donor(const std::vector<std::int64_t>& ids, KvCache& cache) const {
  if (cache.num_tokens() == 0) {
    reuse_->keep(ids, [&](int layer) -> PromptReuse::Rows {
      const KeyValueStore& stored = cache.plain_layer(layer);
      const at::ScalarType dtype = store_options().dtype;
      return {stored.key.rows(dtype), stored.value.rows(dtype)};
    });
  }
  const PartScope scope(part_times_.get(), Part::kCompression);
  quantise(*decoder_, factors_.coded, cache);
}

// A text that outgrows longrope's original length has other keys and values in every layer but the first: it is read again
// from its beginning, with the long factors.
std::vector<std::int64_t> Engine::whole_text(const KvCache& cache,
                                             const std::vector<std::int64_t>& ids) {
  std::vector<std::int64_t> all = cache.ids();
  all.insert(all.end(), ids.begin(), ids.end());
  return all;
}

// With a similar prompt's cache. Logits of the last token; undefined: there is none.
at::Tensor Engine::reuse(Sequence& sequence, const std::vector<std::int64_t>& ids,
                         const Stopped& stopped) const {
  PromptReuse::Found found = reuse_->find(ids);
  if (!found.donor) {
    sequence.reuse_ = std::move(found.report);
    return {};
  }
  KvCache& cache = *sequence.cache_;
  if (reuse_->drops_tokens()) {
    cache.hold_positions(store_options());
  }
  if (budget_) {
    budget_->make_room({&cache}, lengths_of({ids}), true);
  }
  at::Tensor hidden_state, logits;
  {
    const ThreadScope threads(layer_work({&cache}, lengths_of({ids})));
    const PartScope scope(part_times_.get(), Part::kModel);
    const auto store = [&cache](int layer, const at::Tensor& key, const at::Tensor& value,
                                const at::Tensor& positions) {
      cache.plain_layer(layer).append(key, value, positions);
    };
    hidden_state = reuse_->read(ids, found, store, stopped, part_times_.get());
  }
  {
    const PartScope scope(part_times_.get(), Part::kLogits);
    logits = decoder_->logits(hidden_state);
  }
  const PartScope scope(part_times_.get(), Part::kCompression);
  quantise(*decoder_, factors_.coded, cache);
  cache.add_tokens(ids);
  sequence.reuse_ = std::move(found.report);
  return logits;
}

// Each block of a text is compressed before the next one attends to it. Latents are rebuilt once for all blocks: what that
// takes beside the caches is given up with the text.
std::vector<at::Tensor> Engine::read_block_by_block(const std::vector<Sequence*>& sequences,
                                                    const Ids& ids, Rows rows,
                                                    const Stopped& stopped) const {
  std::optional<MemoryBudget> of_text;
  if (!budget_ && !plan_->groups.empty()) {
    StoreOptions unrounded = store_options();
    unrounded.dtype = decoder_->dtype();
    of_text.emplace(std::numeric_limits<std::int64_t>::max(), unrounded, kv_dtype_);
  }
  const std::vector<KvCache*> caches = caches_of(sequences);
  std::vector<at::Tensor> logits;
  try {
    if (of_text) {
      of_text->use_room(*decoder_, factors_.latent, caches);
    }
    logits = extend_all(sequences, ids, rows, stopped, of_text ? &*of_text : budget());
  } catch (...) {
    for (KvCache* cache : caches) {
      *cache = new_cache();
    }
    throw;
  }
  if (of_text) {
    give_up_rebuilt(caches);
  }
  return logits;
}

void Engine::free_rebuilt(Sequence& sequence) const { give_up_rebuilt(caches_of({&sequence})); }

std::vector<at::Tensor> Engine::prefill(const std::vector<Sequence*>& sequences, const Ids& ids,
                                        Rows rows, const Stopped& stopped) const {
  const c10::InferenceMode guard;
  check_call(sequences, ids);
  if (codes_prompts(*plan_) && !reads_codes_by_layer(*plan_, kv_dtype_)) {
    return read_block_by_block(sequences, ids, rows, stopped);
  }
  const bool reuses = reuse_ && rows == Rows::kLast;
  std::vector<at::Tensor> logits(sequences.size());
  try {
    std::vector<std::size_t> others;  // those that no donor reads
    std::vector<KvCache*> caches, outgrown;
    Ids other_ids;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      KvCache& cache = *sequences[i]->cache_;
      if (reuses && cache.num_tokens() == 0) {
        logits[i] = reuse(*sequences[i], ids[i], stopped);
      }
      if (!logits[i].defined()) {
        others.push_back(i);
        caches.push_back(&cache);
        other_ids.push_back(ids[i]);
        if (tokens_until_longrope(cache) < length_of(ids[i])) {
          other_ids.back() = whole_text(cache, ids[i]);
          outgrown.push_back(&cache);
        }
      }
    }
    const std::vector<at::Tensor> of_others =
        read(caches, other_ids, rows, stopped, Pass::kPrefill, outgrown);
    for (std::size_t i = 0; i < others.size(); ++i) {
      const std::int64_t count = std::min(of_others[i].size(0), length_of(ids[others[i]]));
      logits[others[i]] = of_others[i].narrow(0, of_others[i].size(0) - count, count);
    }
  } catch (...) {
    for (std::size_t i = 0; reuses && i < sequences.size(); ++i) {
      *sequences[i]->cache_ = new_cache();
      sequences[i]->reuse_.reset();
    }
    throw;
  }
  return logits;
}

// Keys of some models depend on the whole length.
bool Engine::can_rewind() const {
  return keeps_what_prompts_read() && !is_integer(kv_dtype_) && !reuse_ &&
         !any_depends_on_length(config());
}

void Engine::rewind(Sequence& sequence, std::int64_t num_tokens) const {
  KVC_CHECK(can_rewind() && num_tokens >= 0 && num_tokens <= sequence.num_tokens(),
            "a sequence of {} tokens cannot be cut to {}", sequence.num_tokens(), num_tokens);
  sequence.cache_->truncate(num_tokens);
}

bool Engine::continues_by_layer() const {
  return can_rewind() || (policy_->is_full() && !reuse_ && !any_depends_on_length(config()) &&
                          !plan_->coded.empty() && reads_codes_by_layer(*plan_, kv_dtype_));
}

std::vector<at::Tensor> Engine::extend_text(const std::vector<Sequence*>& sequences, const Ids& ids,
                                            Rows rows, const Stopped& stopped) const {
  const c10::InferenceMode guard;
  check_call(sequences, ids);
  // The first tokens of an empty sequence would be read unrounded.
  const bool are_begun = std::ranges::all_of(
      sequences, [](const Sequence* sequence) { return sequence->num_tokens() > 0; });
  if (!are_begun || !continues_by_layer()) {
    return read_block_by_block(sequences, ids, rows, stopped);
  }
  return read(caches_of(sequences), ids, rows, stopped, Pass::kContinue);
}

}  // namespace kvc
