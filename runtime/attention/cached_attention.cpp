#include "runtime/attention/cached_attention.h"

#include <utility>

#include "runtime/attention/mla_attention.h"

namespace kvc {

CachedAttention::CachedAttention(const SourceContext& context, std::vector<KvCache*> caches,
                                 std::vector<PromptKeys*> prompts, PartTimes* times)
    : context_(context), caches_(std::move(caches)), prompts_(std::move(prompts)), times_(times) {}

// Angles that depend on the length of the text are those of the whole prompt in every piece of it.
at::Tensor CachedAttention::rotate(int layer, const at::Tensor& x, const TokenBatch& batch) const {
  const Decoder& decoder = context_.decoder;
  if (!decoder.config().depends_on_length(layer)) {
    return decoder.rope().rotate(layer, x, batch.positions);
  }
  std::vector<at::Tensor> rotated;
  std::int64_t first = 0;
  for (std::size_t sequence = 0; sequence < caches_.size(); ++sequence) {
    const std::int64_t count = batch.lengths[sequence];
    rotated.push_back(decoder.rope().rotate(layer, x.narrow(0, first, count),
                                            batch.positions.narrow(0, first, count),
                                            prompt_end(sequence)));
    first += count;
  }
  return at::cat(rotated);
}

LayerSource& CachedAttention::source_of(int layer) {
  if (!source_ || !source_->covers(layer)) {
    source_ = make_layer_source(context_, layer);
  }
  return *source_;
}

void CachedAttention::prompt_read(int layer, PromptCompression& prompt) {
  source_of(layer).prompt_read(layer, prompt);
}

at::Tensor CachedAttention::attend(int layer, const AttentionInput& input,
                                   const TokenBatch& batch) {
  const PartScope scope(times_, Part::kAttention, Part::kModel);
  if (context_.decoder.config().mla) {
    return attend_mla(context_.decoder, context_.factors.latent, layer, input, batch, caches_,
                      prompts_);
  }
  const bool has_keys = source_of(layer).has_own_keys();
  const at::Tensor query = rotate(layer, input.query, batch);
  const NewKeyValue raw = has_keys ? project(layer, input) : NewKeyValue{};
  const at::Tensor key = has_keys ? rotate(layer, raw.key, batch) : at::Tensor();
  std::vector<at::Tensor> outputs;
  std::int64_t first = 0;
  for (std::size_t sequence = 0; sequence < caches_.size(); ++sequence) {
    const std::int64_t count = batch.lengths[sequence];
    const auto own = [&](const at::Tensor& x) {
      return caches_.size() == 1 || !x.defined() ? x : x.narrow(0, first, count);
    };
    const NewTokens tokens{prompt_end(sequence), own(batch.positions), raw.narrow(first, count),
                           own(key)};
    outputs.push_back(attend_own(layer, own(query), tokens, sequence));
    first += count;
  }
  return outputs.size() == 1 ? outputs.front() : at::cat(outputs);
}

at::Tensor CachedAttention::attend_own(int layer, const at::Tensor& query, const NewTokens& tokens,
                                       std::size_t sequence) {
  KvCache& cache = *caches_[sequence];
  return context_.pass == Pass::kExtend
             ? source_->extend(layer, tokens, query, cache)
             : source_->read(layer, tokens, query, cache, *prompts_[sequence]);
}

NewKeyValue CachedAttention::project(int layer, const AttentionInput& input) {
  const PartScope scope(times_, Part::kModel, Part::kAttention);
  return source_->keys_and_values(layer, input);
}

// How many tokens a sequence has once its prompt was read; 0 where there is none.
std::int64_t CachedAttention::prompt_end(std::size_t sequence) const {
  return prompts_.empty() ? 0 : caches_[sequence]->num_tokens() + prompts_[sequence]->num_tokens();
}

}  // namespace kvc
