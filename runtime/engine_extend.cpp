// Engine's reading of tokens as generation produces them.
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <limits>

#include "core/thread_waits.h"
#include "model/parallel.h"
#include "runtime/compression/compression.h"
#include "runtime/engine.h"
#include "runtime/memory/memory_forecast.h"
#include "runtime/thread_scope.h"

namespace kvc {
namespace {

// The row of each sequence's last token.
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

// A step has hundreds of short loops, and each ends with its slowest thread: one on a core that other work takes runs at half
// the speed of the others. LibTorch's float32 products depend on the number of threads, so such steps keep all of them.
int cores_to_leave(at::ScalarType compute) { return compute == at::kFloat ? 0 : cores_of_others(); }

}  // namespace

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

std::vector<at::Tensor> Engine::forward(const std::vector<KvCache*>& caches, const Ids& ids,
                                        Rows rows) const {
  const TokenBatch batch = batch_after(caches, ids);
  const ThreadScope threads(layer_work(caches, batch.lengths));
  const FewerThreads own_cores(at::get_num_threads() - cores_to_leave(decoder_->dtype()));
  CachedAttention attention({*decoder_, *plan_, factors_, Pass::kExtend, *policy_, rebuilt_.get()},
                            caches, {}, part_times_.get());
  at::Tensor hidden_states;
  {
    const PartScope scope(part_times_.get(), Part::kModel);
    hidden_states = decoder_->forward(batch, attention);
  }
  for (std::size_t sequence = 0; sequence < caches.size(); ++sequence) {
    caches[sequence]->add_tokens(ids[sequence]);
  }
  const PartScope scope(part_times_.get(), Part::kLogits);
  if (rows == Rows::kAll) {
    return decoder_->logits(hidden_states).split_with_sizes(batch.lengths);
  }
  if (hidden_states.size(0) > static_cast<std::int64_t>(caches.size())) {
    hidden_states = hidden_states.index_select(0, at::tensor(last_rows(batch.lengths), at::kLong));
  }
  return decoder_->logits(hidden_states).split(1);
}

// The block that has left the window.
void Engine::compress_block(KvCache& cache) const {
  const PartScope scope(part_times_.get(), Part::kCompression);
  compress(compression(), due_tokens(cache.plan(), cache.tokens(), false), cache.num_tokens(),
           cache);
  quantise(*decoder_, factors_.coded, cache);
}

std::vector<at::Tensor> Engine::extend(const std::vector<Sequence*>& sequences, const Ids& ids,
                                       Rows rows, const Stopped& stopped) const {
  const c10::InferenceMode guard;
  check_call(sequences, ids);
  return extend_all(sequences, ids, rows, stopped, budget());
}

std::vector<at::Tensor> Engine::extend_all(const std::vector<Sequence*>& sequences, const Ids& ids,
                                           Rows rows, const Stopped& stopped,
                                           const MemoryBudget* budget) const {
  std::vector<PendingIds> pending;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    pending.push_back({sequences[i]->cache_.get(), &ids[i], 0, {}});
  }
  while (extend_round(pending, rows, budget)) {
    const bool is_done = std::all_of(pending.begin(), pending.end(),
                                     [](const PendingIds& sequence) { return sequence.is_done(); });
    if (!is_done && stopped && stopped()) {
      throw Interrupted();
    }
  }
  std::vector<at::Tensor> outputs;
  for (PendingIds& sequence : pending) {
    outputs.push_back(sequence.logits.size() == 1 ? sequence.logits.front()
                                                  : at::cat(sequence.logits));
  }
  return outputs;
}

// Tokens that are read together. Dynamic RoPE turns them all by the last one's length, where each has its own if they come one
// by one: as they do behind the length from which on angles change.
std::int64_t Engine::most_extended(const KvCache& cache) const {
  std::int64_t most =
      prefill_chunk_ > 0 ? prefill_chunk_ : std::numeric_limits<std::int64_t>::max();
  for (const RopeConfig& rope : config().ropes) {
    if (rope.type == RopeType::kDynamic) {
      const auto fixed = static_cast<std::int64_t>(rope.max_position_embeddings);
      most = std::min(most, std::max<std::int64_t>(1, fixed - cache.num_tokens()));
    }
  }
  return most;
}

// Feeds every sequence the ids up to where its next block leaves the window; false if none has any left.
bool Engine::extend_round(std::vector<PendingIds>& pending, Rows rows,
                          const MemoryBudget* budget) const {
  std::vector<PendingIds*> active;
  std::vector<KvCache*> caches;
  Ids chunks;
  bool any = false;
  const auto forecast = [this](const KvCache& cache) {
    return CacheForecast(cache, kv_dtype_, pool_->page_tokens());
  };
  for (PendingIds& sequence : pending) {
    if (sequence.is_done()) {
      continue;
    }
    any = true;
    const std::int64_t until_longrope = tokens_until_longrope(*sequence.cache);
    if (until_longrope == 0) {
      const Ids all{whole_text(*sequence.cache, sequence.take(1))};
      const std::vector<KvCache*> one{sequence.cache};
      sequence.add(read(one, all, Rows::kLast, {}, Pass::kPrefill, one).front(), rows);
      continue;
    }
    active.push_back(&sequence);
    caches.push_back(sequence.cache);
    chunks.push_back(sequence.take(std::min({forecast(*sequence.cache).tokens_until_due(),
                                             until_longrope, most_extended(*sequence.cache)})));
  }
  if (active.empty()) {
    return any;
  }
  if (budget != nullptr) {
    budget->make_room(caches, lengths_of(chunks), false);
  }
  const std::vector<at::Tensor> logits = forward(caches, chunks, rows);
  bool compressed = false;
  for (std::size_t i = 0; i < active.size(); ++i) {
    if (forecast(*caches[i]).tokens_until_due() <= 0) {
      compress_block(*caches[i]);
      compressed = true;
    }
    active[i]->add(logits[i], rows);
  }
  if (budget != nullptr && compressed) {
    budget->use_room(*decoder_, factors_.latent, caches);
  }
  return true;
}

}  // namespace kvc
