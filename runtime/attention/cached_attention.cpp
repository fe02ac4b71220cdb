#include "runtime/attention/cached_attention.h"

#include <utility>

#include "runtime/attention/mla_attention.h"

namespace kvc {

CachedAttention::CachedAttention(const SourceContext& context, std::vector<KvCache*> caches,
                                 std::vector<PromptKeys*> prompts, PartTimes* times)
    : context_(context), caches_(std::move(caches)), prompts_(std::move(prompts)), times_(times) {
  prompts_.resize(caches_.size());
}

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
    const PromptKeys* prompt = prompts_[sequence];
    rotated.push_back(decoder.rope().rotate(
        layer, x.narrow(0, first, count), batch.positions.narrow(0, first, count),
        prompt == nullptr ? 0 : caches_[sequence]->num_tokens() + prompt->num_tokens()));
    first += count;
  }
  return at::cat(rotated);
}

at::Tensor CachedAttention::attend(int layer, const AttentionInput& input,
                                   const TokenBatch& batch) {
  const PartScope scope(times_, Part::kAttention, Part::kModel);
  if (context_.decoder.config().mla) {
    return attend_mla(context_.decoder, context_.factors.latent, layer, input, batch, caches_,
                      context_.pass == Pass::kPrefill, prompts_);
  }
  if (!source_ || !source_->covers(layer)) {
    source_ = make_layer_source(context_, layer);
  }
  const at::Tensor query = rotate(layer, input.query, batch);
  if (!source_->has_own_keys()) {
    return attend_stored(layer, query, batch);
  }
  const NewKeyValue raw = project(layer, input);
  const at::Tensor key = rotate(layer, raw.key, batch);
  std::vector<at::Tensor> outputs;
  std::int64_t first = 0;
  for (std::size_t sequence = 0; sequence < caches_.size(); ++sequence) {
    const std::int64_t count = batch.lengths[sequence];
    const auto own = [&](const at::Tensor& x) {
      return caches_.size() == 1 ? x : x.narrow(0, first, count);
    };
    const NewTokens tokens{first,        count,    own(batch.positions),
                           own(raw.key), own(key), own(raw.value)};
    KvCache& cache = *caches_[sequence];
    if (context_.pass == Pass::kPrefill) {
      source_->store(layer, tokens, cache);
      outputs.push_back(attend_prompt_of(layer, own(query), tokens, sequence));
      source_->attended(layer, tokens, own(query), prompt_end(count, sequence), cache);
    } else {
      outputs.push_back(source_->extend(layer, tokens, own(query), cache));
    }
    first += count;
  }
  return outputs.size() == 1 ? outputs.front() : at::cat(outputs);
}

NewKeyValue CachedAttention::project(int layer, const AttentionInput& input) {
  const PartScope scope(times_, Part::kModel, Part::kAttention);
  return source_->keys_and_values(layer, input);
}

// How many tokens a sequence has once the prompt is read that `count` tokens of the batch are of.
std::int64_t CachedAttention::prompt_end(std::int64_t count, std::size_t sequence) const {
  const PromptKeys* prompt = prompts_[sequence];
  return caches_[sequence]->num_tokens() + (prompt == nullptr ? count : prompt->num_tokens());
}

at::Tensor CachedAttention::attend_stored(int layer, const at::Tensor& query,
                                          const TokenBatch& batch) {
  std::vector<at::Tensor> outputs;
  std::int64_t first = 0;
  for (std::size_t sequence = 0; sequence < caches_.size(); ++sequence) {
    const std::int64_t count = batch.lengths[sequence];
    const at::Tensor own = query.narrow(0, first, count);
    const NewTokens tokens{first, count, batch.positions.narrow(0, first, count), {}, {}, {}};
    KvCache& cache = *caches_[sequence];
    outputs.push_back(source_->attend(layer, own, tokens.positions, cache));
    source_->attended(layer, tokens, own,
                      context_.pass == Pass::kPrefill ? prompt_end(count, sequence) : 0, cache);
    first += count;
  }
  return outputs.size() == 1 ? outputs.front() : at::cat(outputs);
}

at::Tensor CachedAttention::attend_prompt_of(int layer, const at::Tensor& query,
                                             const NewTokens& tokens, std::size_t sequence) const {
  const KvCache& cache = *caches_[sequence];
  if (cache.num_tokens() > 0 || !source_->reads_prompts_exactly()) {
    return source_->attend(layer, query, tokens.positions, cache);
  }
  const AttentionRule rule = attention_rule(context_.decoder.config(), layer);
  if (PromptKeys* prompt = prompts_[sequence]) {
    prompt->append(layer, tokens.key, tokens.value);
    return attend_prompt(query, prompt->key(), prompt->value(), rule);
  }
  return causal_attention(query, tokens.key, tokens.value, rule);
}

}  // namespace kvc
