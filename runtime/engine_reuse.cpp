// Engine's reading of prompts with similar ones' caches.
#include <utility>

#include "core/error.h"
#include "runtime/engine.h"
#include "runtime/reuse/prompt_reuse.h"
#include "runtime/thread_scope.h"

namespace kvc {

void Engine::start_reuse(const Checkpoint& checkpoint, const CacheTypes& types,
                         const EngineOptions& options) {
  check_reuse(config(), *plan_);
  check_reuse_options(options.reuse, *policy_, types.kv);
  reuse_ = std::make_unique<PromptReuse>(reuse_model(*decoder_),
                                         donor_format(checkpoint, config(), types.compute,
                                                      store_options().dtype, options.weight_dtype),
                                         options.reuse);
}

// Logits of the last token; nullopt: the prompt is to be read as a whole.
std::optional<at::Tensor> Engine::reuse(Sequence& sequence, const std::vector<std::int64_t>& ids,
                                        const Stopped& stopped) const {
  PromptReuse::Found found = reuse_->find(ids);
  std::optional<at::Tensor> logits;
  if (found.donor) {
    KvCache& cache = *sequence.cache_;
    if (reuse_->drops_tokens()) {
      cache.hold_positions(store_options());
    }
    if (budget_) {
      budget_->make_room({&cache}, lengths_of({ids}), true);
    }
    at::Tensor hidden_state;
    {
      const ThreadScope threads(layer_work({&cache}, lengths_of({ids})));
      const PartScope scope(part_times_.get(), Part::kModel);
      const auto store = [&cache](int layer, const at::Tensor& key, const at::Tensor& value,
                                  const at::Tensor& positions) {
        cache.plain_layer(layer).append(key, value, positions);
      };
      hidden_state = reuse_->read(ids, found, store, stopped, part_times_.get());
    }
    const PartScope scope(part_times_.get(), Part::kLogits);
    logits = decoder_->logits(hidden_state);
    compress_prompt(static_cast<std::int64_t>(ids.size()), cache);
    cache.add_tokens(ids);
  }
  sequence.reuse_ = std::move(found.report);
  return logits;
}

// Every sequence by itself; those without a donor, and later turns, together.
std::vector<at::Tensor> Engine::read_or_reuse(const std::vector<Sequence*>& sequences,
                                              const Ids& ids, const Stopped& stopped) const try {
  std::vector<at::Tensor> logits(sequences.size());
  std::vector<std::size_t> others;
  std::vector<KvCache*> caches;
  Ids other_ids;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    if (sequences[i]->num_tokens() == 0) {
      if (std::optional<at::Tensor> reused = reuse(*sequences[i], ids[i], stopped)) {
        logits[i] = *std::move(reused);
        continue;
      }
    }
    others.push_back(i);
    caches.push_back(sequences[i]->cache_.get());
    other_ids.push_back(ids[i]);
  }
  if (!others.empty()) {
    const std::vector<at::Tensor> of_others = read_whole(caches, other_ids, Rows::kLast, stopped);
    for (std::size_t i = 0; i < others.size(); ++i) {
      logits[others[i]] = of_others[i];
    }
  }
  return logits;
} catch (...) {
  for (Sequence* sequence : sequences) {
    *sequence->cache_ = new_cache();
  }
  throw;
}

}  // namespace kvc
