#include "convert/latent/group_forms.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

namespace kvc {
namespace {

const at::Tensor* find(const NamedTensors& tensors, const std::string& name) {
  const auto found = std::find_if(tensors.begin(), tensors.end(),
                                  [&](const auto& tensor) { return tensor.first == name; });
  return found == tensors.end() ? nullptr : &found->second;
}

std::vector<LayerSample> single_layers(const FormSample& sample) {
  std::vector<LayerSample> all;
  for (const std::vector<LayerSample>& batches : sample.layers()) {
    all.insert(all.end(), batches.begin(), batches.end());
  }
  return all;
}

// What a merged token is encoded from, of one batch: stacked y, or the weighted sum of the layers' inputs.
at::Tensor merged_inputs(const FormSample& sample, const Merger& merger, std::size_t batch) {
  at::Tensor mixed;
  std::vector<at::Tensor> stacked;
  for (std::size_t member = 0; member < sample.layers().size(); ++member) {
    const LayerSample& own = sample.layers()[member][batch];
    if (merger.encoder.defined()) {
      stacked.insert(stacked.end(), {own.keys, own.values});
    } else {
      const at::Tensor weighted = own.inputs * merger.weights[member];
      mixed = mixed.defined() ? mixed + weighted : weighted;
    }
  }
  return merger.encoder.defined() ? at::cat(stacked, 1) : mixed;
}

std::vector<LayerSample> merged_layers(const FormSample& sample, const Merger& merger) {
  std::vector<LayerSample> all;
  for (std::size_t batch = 0; batch < sample.layers().front().size(); ++batch) {
    const at::Tensor inputs = merged_inputs(sample, merger, batch);
    for (const std::vector<LayerSample>& batches : sample.layers()) {
      all.push_back({inputs, batches[batch].keys, batches[batch].values, batches[batch].first_row});
    }
  }
  return all;
}

// By matrix; one with two purposes must serve both.
class Choices {
 public:
  void add(const std::string& encoder, const std::string& decoder, const NamedTensors& tensors,
           const std::vector<LayerSample>& layers) {
    const PairChoice pair = choose_pair(*find(tensors, encoder), *find(tensors, decoder), layers);
    add(encoder, pair.encoder);
    add(decoder, pair.decoder);
  }
  void append_to(NamedTensors& tensors) const {
    for (const auto& [matrix, wide] : of_matrix_) {
      add_choice(tensors, matrix, wide);
    }
  }

 private:
  void add(const std::string& matrix, const WideCoefficients& wide) {
    const auto [place, is_new] = of_matrix_.try_emplace(matrix, wide);
    if (!is_new) {
      place->second = both(place->second, wide);
    }
  }

  std::map<std::string, WideCoefficients> of_matrix_;
};

}  // namespace

void choose_forms(const KvPlan& plan, int group, const GroupFit& fit, NamedTensors& tensors) {
  const std::string a = "latent_proj", b = "reconstruct_proj", p = "encoder",
                    refitted = "merged_reconstruct_proj";
  Choices choices;
  if (needs_latents(plan, group)) {
    choices.add(a, b, tensors, single_layers(fit.sample()));
  }
  if (plan.compression.rule != MergeRule::kNone) {
    choices.add(find(tensors, p) == nullptr ? a : p,
                find(tensors, refitted) == nullptr ? b : refitted, tensors,
                merged_layers(fit.sample(), fit.merger()));
  }
  choices.append_to(tensors);
}

void choose_split_forms(const FormSample& sample, NamedTensors& tensors) {
  Choices choices;
  for (const bool values : {false, true}) {
    std::vector<LayerSample> layers = single_layers(sample);
    for (LayerSample& layer : layers) {
      layer = {layer.inputs, values ? layer.values : layer.keys, at::Tensor(), 0};
    }
    const std::string part = values ? "value." : "key.";
    choices.add(part + "latent_proj", part + "reconstruct_proj", tensors, layers);
  }
  choices.append_to(tensors);
}

}  // namespace kvc
