// Engine's reading of prompts.
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "runtime/compression/prompt_compression.h"
#include "runtime/engine.h"
#include "runtime/reuse/prompt_reuse.h"
#include "runtime/thread_scope.h"

namespace kvc {
namespace {

std::int64_t length_of(const std::vector<std::int64_t>& ids) {
  return static_cast<std::int64_t>(ids.size());
}

}  // namespace

// A later turn sees keys of the cache, which RoPE that depends on the length turns when they are read, by
// the length that is there: such a turn is not read in pieces. Nor are latents of such a model.
std::vector<PromptPiece> Engine::pieces_of_prompts(const std::vector<KvCache*>& caches,
                                                   const Ids& ids) const {
  bool by_length = false;
  for (int layer = 0; layer < config().num_layers; ++layer) {
    by_length = by_length || config().depends_on_length(layer);
  }
  std::vector<std::int64_t> num_tokens;
  std::vector<bool> whole;
  for (const KvCache* cache : caches) {
    num_tokens.push_back(cache->num_tokens());
    whole.push_back(by_length && (cache->num_tokens() > 0 || config().mla));
  }
  return pieces_of(ids, num_tokens, whole, prefill_chunk_);
}

// Of the rows that a call returns.
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

void Engine::compress_prompt(std::int64_t count, KvCache& cache) const {
  const PartScope scope(part_times_.get(), Part::kCompression);
  PromptCompression compression_of(compression(), count, cache);
  for (int layer = 0; layer < config().num_layers; ++layer) {
    compression_of.layer_read(layer);
  }
}

std::vector<at::Tensor> Engine::read(const std::vector<KvCache*>& caches, const Ids& ids, Rows rows,
                                     const Stopped& stopped) const {
  if (!budget_) {
    return read_all(caches, ids, rows, stopped);
  }
  budget_->make_room(caches, lengths_of(ids), true);
  std::vector<at::Tensor> logits = read_all(caches, ids, rows, stopped);
  budget_->use_room(*decoder_, factors_.latent, caches);
  return logits;
}

// Donors are kept with the exact rows of all layers, which are compressed afterwards.
std::vector<at::Tensor> Engine::read_all(const std::vector<KvCache*>& caches, const Ids& ids,
                                         Rows rows, const Stopped& stopped) const try {
  const std::vector<PromptPiece> pieces = pieces_of_prompts(caches, ids);
  const std::vector<std::int64_t> lengths = lengths_of(ids);
  std::deque<PromptCompression> compressions;
  for (std::size_t i = 0; i < caches.size() && !reuse_; ++i) {
    compressions.emplace_back(compression(), lengths[i], *caches[i]);
  }
  const auto layer_read = [&](int layer) {
    const PartScope scope(part_times_.get(), Part::kCompression, Part::kModel);
    for (PromptCompression& of_cache : compressions) {
      of_cache.layer_read(layer);
    }
  };
  std::vector<at::Tensor> hidden_states;
  {
    const ThreadScope threads(layer_work(caches, lengths));
    const PartScope scope(part_times_.get(), Part::kModel);
    hidden_states = read_pieces(*decoder_, *plan_, factors_, caches, lengths, pieces, layer_read,
                                stopped, part_times_.get());
    decoder_->rope().forget();  // a later turn's, of all positions that the cache holds
  }
  std::vector<at::Tensor> logits = prompt_logits(pieces, hidden_states, ids, rows);
  for (std::size_t i = 0; i < caches.size(); ++i) {
    if (reuse_) {
      keep_as_donor(ids[i], *caches[i]);
      compress_prompt(lengths[i], *caches[i]);
    }
    caches[i]->add_tokens(ids[i]);
  }
  return logits;
} catch (...) {
  for (KvCache* cache : caches) {  // layers hold different numbers of tokens
    *cache = new_cache();
  }
  throw;
}

void Engine::keep_as_donor(const std::vector<std::int64_t>& ids, const KvCache& cache) const {
  if (cache.num_tokens() > 0) {
    return;
  }
  reuse_->keep(ids, [&](int layer) -> PromptReuse::Rows {
    const KeyValueStore& stored = cache.plain_layer(layer);
    const at::ScalarType dtype = store_options().dtype;
    return {stored.key.rows(dtype), stored.value.rows(dtype)};
  });
}

// A text that outgrows longrope's original length has other keys and values in every layer but the first:
// what is cached is dropped, and all of it is read with the long factors. Logits of the new ids.
at::Tensor Engine::read_again(KvCache& cache, const std::vector<std::int64_t>& ids, Rows rows,
                              const Stopped& stopped) const {
  std::vector<std::int64_t> all = cache.ids();
  all.insert(all.end(), ids.begin(), ids.end());
  cache = new_cache();
  const at::Tensor logits = read({&cache}, {all}, rows, stopped).front();
  const std::int64_t count = std::min(logits.size(0), length_of(ids));
  return logits.narrow(0, logits.size(0) - count, count);
}

std::vector<at::Tensor> Engine::read_whole(const std::vector<KvCache*>& caches, const Ids& ids,
                                           Rows rows, const Stopped& stopped) const {
  bool outgrows = false;
  for (std::size_t i = 0; i < caches.size(); ++i) {
    outgrows = outgrows || tokens_until_longrope(*caches[i]) < length_of(ids[i]);
  }
  if (!outgrows) {
    return read(caches, ids, rows, stopped);
  }
  std::vector<at::Tensor> logits;
  for (std::size_t i = 0; i < caches.size(); ++i) {
    const bool again = tokens_until_longrope(*caches[i]) < length_of(ids[i]);
    logits.push_back(again ? read_again(*caches[i], ids[i], rows, stopped)
                           : read({caches[i]}, {ids[i]}, rows, stopped).front());
  }
  return logits;
}

std::vector<at::Tensor> Engine::prefill(const std::vector<Sequence*>& sequences, const Ids& ids,
                                        Rows rows, const Stopped& stopped) const {
  const c10::InferenceMode guard;
  check_call(sequences, ids);
  if (reuse_ && rows == Rows::kLast) {
    return read_or_reuse(sequences, ids, stopped);
  }
  std::vector<KvCache*> caches;
  for (Sequence* sequence : sequences) {
    caches.push_back(sequence->cache_.get());
  }
  return read_whole(caches, ids, rows, stopped);
}

}  // namespace kvc
