#include "tests/runtime/policy_reference.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

namespace kvc::testing {
namespace {

bool has_layer(const ReferenceSet& set, int layer) {
  return std::find(set.layers.begin(), set.layers.end(), layer) != set.layers.end();
}

}  // namespace

PolicyReference::PolicyReference(const SyntheticCheckpoint& model, const KvPlan& plan,
                                 const TokenPolicy& policy, const std::vector<ReferenceSet>& sets)
    : plan_(plan), policy_(policy), sets_(sets), definition_(plan) {
  write_synthetic_checkpoint(directory_.path(), model);
  decoder_ = std::make_unique<Decoder>(Checkpoint::open(directory_.path()), at::kFloat);
}

const ReferenceSet& PolicyReference::set_of(int layer) const {
  return *std::find_if(sets_.begin(), sets_.end(),
                       [layer](const ReferenceSet& set) { return has_layer(set, layer); });
}

PolicyReference::Choice& PolicyReference::choice(const ReferenceSet& set, std::int64_t kv_head) {
  return choices_[set.layers.front()][set.shares_heads ? 0 : kv_head];
}

const std::vector<std::int64_t>& PolicyReference::kept(int layer, std::int64_t kv_head) const {
  return choices_.at(set_of(layer).layers.front()).at(kv_head).kept;
}

at::Tensor PolicyReference::read(const Row& ids, bool is_prompt) {
  is_prompt_ = is_prompt;
  const auto count = static_cast<std::int64_t>(ids.size());
  const TokenBatch batch{.ids = at::tensor(ids, at::kLong),
                         .positions = at::arange(num_tokens_, num_tokens_ + count, at::kLong),
                         .lengths = {count}};
  const at::Tensor logits = decoder_->logits(decoder_->forward(batch, *this));
  num_tokens_ += count;
  return logits;
}

at::Tensor PolicyReference::attend(int layer, const AttentionInput& input,
                                   const TokenBatch& batch) {
  const auto rotate = [&](const at::Tensor& x) {
    return decoder_->rope().rotate(layer, x, batch.positions);
  };
  const FusedDefinition::Rows rows = definition_.rows(layer, input);
  const auto append = [](const at::Tensor& x, at::Tensor& to) {
    to = to.defined() ? at::cat({to, x}) : x;
  };
  append(rotate(rows.key), keys_[layer]);
  append(rows.value, values_[layer]);
  const ReferenceSet& set = set_of(layer);
  const std::int64_t heads = plan_.num_kv_heads, count = input.query.size(0);
  for (std::int64_t head = 0; layer == set.layers.front() && head < heads; ++head) {
    for (auto& [position, score] : choice(set, head).scores) {
      score *= set.shares_heads && head > 0 ? 1
               : policy_.is_running()       ? std::pow(policy_.lambda, static_cast<double>(count))
                                            : 0;
    }
  }
  const at::Tensor query = rotate(input.query);
  std::vector<at::Tensor> outputs;
  for (std::int64_t head = 0; head < query.size(1); ++head) {
    outputs.push_back(attend_head(layer, head * heads / query.size(1), query.select(1, head)));
  }
  for (std::int64_t head = 0; layer == set.layers.back() && head < (set.shares_heads ? 1 : heads);
       ++head) {
    finish(set, head, choice(set, head));
  }
  return at::stack(outputs, 1).flatten(1);
}

// Tokens that were kept, averages, new tokens.
PolicyReference::Rows PolicyReference::rows(int layer, std::int64_t kv_head,
                                            const Choice& choice) const {
  const at::Tensor key = keys_.at(layer).select(1, kv_head);
  const at::Tensor value = values_.at(layer).select(1, kv_head);
  const at::Tensor own = at::tensor(choice.kept, at::kLong);
  std::vector<at::Tensor> keys{key.index_select(0, own)}, values{value.index_select(0, own)};
  std::vector<at::Tensor> biases{at::zeros({own.size(0)}, at::kFloat)};
  for (const std::vector<std::int64_t>& members : choice.slots) {
    const at::Tensor index = at::tensor(members, at::kLong);
    keys.push_back(key.index_select(0, index).mean(0, true));
    values.push_back(value.index_select(0, index).mean(0, true));
    biases.push_back(
        at::full({1}, policy_.alpha * std::log(static_cast<double>(members.size())), at::kFloat));
  }
  keys.push_back(key.slice(0, num_tokens_));
  values.push_back(value.slice(0, num_tokens_));
  biases.push_back(at::zeros({key.size(0) - num_tokens_}, at::kFloat));
  return {at::cat(keys), at::cat(values), at::cat(biases)};
}

// query [n, head_dim]. The same shape.
at::Tensor PolicyReference::attend_head(int layer, std::int64_t kv_head, const at::Tensor& query) {
  Choice& own = choice(set_of(layer), kv_head);
  const Rows seen = rows(layer, kv_head, own);
  const std::int64_t count = query.size(0), total = seen.key.size(0);
  at::Tensor scores =
      at::mm(query, seen.key.t()) / std::sqrt(static_cast<double>(query.size(1))) + seen.bias;
  scores.slice(1, total - count)
      .masked_fill_(at::ones({count, count}, at::kBool).triu(1), -INFINITY);
  const at::Tensor probabilities = scores.softmax(-1);
  const auto kept = static_cast<std::int64_t>(own.kept.size());
  const std::int64_t first =
      policy_.is_running() ? 0 : std::max<std::int64_t>(0, count - policy_.window_tokens);
  at::Tensor received = at::zeros({total}, at::kDouble);
  for (std::int64_t i = first; i < count; ++i) {
    received += probabilities[i].to(at::kDouble) *
                std::pow(policy_.lambda, static_cast<double>(count - 1 - i));
  }
  for (std::int64_t row = 0; row < kept; ++row) {
    own.scores[own.kept[static_cast<std::size_t>(row)]] += received[row].item<double>();
  }
  for (std::int64_t i = 0; i < count; ++i) {
    own.scores[num_tokens_ + i] += received[total - count + i].item<double>();
  }
  return at::mm(probabilities, seen.value);
}

// For kept tokens, ascending by position.
std::vector<std::int64_t> PolicyReference::leaving(const Choice& choice,
                                                   std::int64_t budget) const {
  const auto count = static_cast<std::int64_t>(choice.kept.size());
  std::int64_t first = 0, last = count - policy_.window_tokens,
               stay = budget - policy_.window_tokens;
  std::map<std::int64_t, double> scores = choice.scores;
  if (policy_.is_running()) {
    const RunningLayout layout = running_layout(policy_, budget);
    if (count <= (choice.slots.empty() ? budget : layout.rows())) {
      return {};
    }
    first = layout.sinks;
    last = count - layout.ring;
    stay = layout.context;
  } else if (!is_prompt_ || count <= budget) {
    return {};
  } else {
    const std::int64_t reach = policy_.pool_width / 2;
    for (std::int64_t i = 0; i < last; ++i) {
      double most = 0;
      for (std::int64_t j = std::max<std::int64_t>(0, i - reach);
           j <= std::min(last - 1, i + reach); ++j) {
        most = std::max(most, choice.scores.at(choice.kept[static_cast<std::size_t>(j)]));
      }
      scores[choice.kept[static_cast<std::size_t>(i)]] = most;
    }
  }
  std::vector<std::int64_t> candidates(choice.kept.begin() + first, choice.kept.begin() + last);
  // With equal votes the earlier token stays; scores of running policies are never equal here.
  std::stable_sort(candidates.begin(), candidates.end(),
                   [&](std::int64_t a, std::int64_t b) { return scores.at(a) > scores.at(b); });
  candidates.erase(candidates.begin(), candidates.begin() + stay);
  std::sort(candidates.begin(), candidates.end());
  return candidates;
}

void PolicyReference::finish(const ReferenceSet& set, std::int64_t kv_head, Choice& choice) {
  const std::int64_t count = keys_.at(set.layers.front()).size(0);
  for (std::int64_t token = num_tokens_; token < count; ++token) {
    choice.kept.push_back(token);
  }
  const std::int64_t budget = layer_budget(policy_, 1, 0, plan_.num_layers());
  for (const std::int64_t token : leaving(choice, budget)) {
    choice.kept.erase(std::find(choice.kept.begin(), choice.kept.end(), token));
    choice.scores.erase(token);
    if (policy_.residual_slots > 0) {
      merge(set, kv_head, token, choice);
    }
  }
}

void PolicyReference::merge(const ReferenceSet& set, std::int64_t kv_head, std::int64_t token,
                            Choice& choice) {
  if (static_cast<std::int64_t>(choice.slots.size()) < policy_.residual_slots) {
    choice.slots.push_back({token});
    return;
  }
  std::size_t best = 0;
  double largest = -INFINITY;
  for (std::size_t slot = 0; slot < choice.slots.size(); ++slot) {
    double likeness = 0;
    for (const int layer : set.layers) {
      if (plan_.layers[static_cast<std::size_t>(layer)] != KvSource::kPlain) {
        continue;
      }
      at::Tensor key = keys_.at(layer);  // [tokens, heads, head_dim]
      key = set.shares_heads ? key : key.narrow(1, kv_head, 1);
      const at::Tensor mean =
          key.index_select(0, at::tensor(choice.slots[slot], at::kLong)).mean(0);
      likeness += (mean * key[token]).sum().item<double>();
    }
    if (likeness > largest) {
      largest = likeness;
      best = slot;
    }
  }
  choice.slots[best].push_back(token);
}

at::Tensor reference_turns(PolicyReference& reference, const Row& ids, const Turns& turns) {
  std::vector<at::Tensor> logits{reference.read(part(ids, 0, turns.first), true)};
  const auto one_by_one = [&](std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) {
      logits.push_back(reference.read({ids[i]}, false));
    }
  };
  one_by_one(turns.first, turns.second);
  logits.push_back(reference.read(part(ids, turns.second, turns.end), true));
  one_by_one(turns.end, ids.size());
  return at::cat(logits);
}

}  // namespace kvc::testing
