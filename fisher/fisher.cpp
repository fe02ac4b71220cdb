#include "fisher/fisher.h"

#include "core/error.h"
#include "core/progress.h"
#include "fisher/backward.h"
#include "fisher/fisher_file.h"
#include "model/layer_stream.h"
#include "model/spill_file.h"
#include "model/statistics_provenance.h"
#include "model/sum_files.h"

namespace kvc {
namespace {

// One run over a token set. Boundary l is the input of layer l; behind the last layer, and once layer l
// has been differentiated, boundary l holds d loss / d boundary instead.
class FisherRun {
 public:
  FisherRun(const Checkpoint& checkpoint, const ModelConfig& config, const TokenSet& tokens,
            const std::filesystem::path& directory, const ComputePlace& place)
      : checkpoint_(checkpoint),
        config_(config),
        place_(place),
        stream_(checkpoint, config, tokens,
                {.place = place, .batch_tokens = 1, .spill_directory = directory}),
        boundaries_(
            make_spilled_tensor({config.num_layers + 1, tokens.num_tokens(), config.hidden_size},
                                at::kFloat, directory)),
        progress_("fisher", std::int64_t{2 * config.num_layers + 1} * stream_.num_batches()) {}

  FisherSums run() {
    FisherSums sums(config_.num_layers, config_.kv_dim());
    forward();
    differentiate_loss(sums);
    for (int layer = config_.num_layers - 1; layer >= 0; --layer) {
      differentiate_layer(layer, sums);
    }
    return sums;
  }

 private:
  at::Tensor boundary(int layer, std::int64_t first, std::int64_t count) const {
    return boundaries_[layer].narrow(0, first, count);
  }

  // Calls with each sequence's index and first token.
  template <typename Function>
  void for_each_sequence(Function&& function) {
    std::int64_t first = 0;
    for (int index = 0; index < stream_.num_batches(); ++index) {
      function(index, first);
      first += stream_.batch(index).ids.size(0);
      progress_.advance();
    }
  }

  void forward() {
    for (int layer = 0; layer < config_.num_layers; ++layer) {
      for_each_sequence([&](int index, std::int64_t first) {
        const at::Tensor hidden = stream_.boundary(index);
        boundary(layer, first, hidden.size(0)).copy_(hidden);
      });
      stream_.advance(1, {});
    }
  }

  void differentiate_loss(FisherSums& sums) {
    const ModelWeights weights =
        to_device(load_model_weights(checkpoint_, config_, place_.dtype), place_.device);
    for_each_sequence([&](int index, std::int64_t first) {
      const TokenBatch& batch = stream_.batch(index);
      const LossGradient gradient =
          loss_gradient(config_, weights, place_.take(stream_.boundary(index)), batch.ids);
      sums.add_loss(gradient.loss, batch.ids.size(0) - 1);
      boundary(config_.num_layers, first, batch.ids.size(0)).copy_(gradient.hidden);
    });
  }

  void differentiate_layer(int layer, FisherSums& sums) {
    const LayerWeights weights =
        to_device(load_layer(checkpoint_, config_, layer, place_.dtype), place_.device);
    SquaredGradients squares(config_.kv_dim(), config_.hidden_size, place_.device);
    for_each_sequence([&](int index, std::int64_t first) {
      const TokenBatch& batch = stream_.batch(index);
      const std::int64_t count = batch.ids.size(0);
      const LayerGradient gradient = layer_gradient(
          config_, stream_.rope(), weights, layer, place_.take(boundary(layer, first, count)),
          batch, place_.take(boundary(layer + 1, first, count)), /*with_hidden=*/layer > 0);
      squares.add(gradient.k_proj, gradient.v_proj);
      if (layer > 0) {
        boundary(layer, first, count).copy_(gradient.hidden);
      }
    });
    sums.set_layer(layer, squares);
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  ComputePlace place_;
  LayerStream stream_;
  at::Tensor boundaries_;  // [num_layers + 1, num_tokens, hidden_size] float32
  Progress progress_;
};

}  // namespace

Provenance fisher_provenance(const Checkpoint& checkpoint, const TokenSet& tokens,
                             const ComputePlace& place) {
  return statistics_provenance("fisher", checkpoint, tokens, place);
}

void fisher(const Checkpoint& checkpoint, const TokenSet& tokens, const std::filesystem::path& out,
            bool force, const ComputePlace& place) {
  const ModelConfig config = read_checked_model_config(checkpoint);
  for (const auto& sequence : tokens.sequences) {
    KVC_CHECK(sequence.size() >= 2,
              "the token set holds a sequence of {} tokens; Fisher information scores each token "
              "against the next, so give longer text",
              sequence.size());
  }
  const Provenance provenance = fisher_provenance(checkpoint, tokens, place);
  write_sums(out, force, provenance, [&](Hdf5Writer& file, const std::filesystem::path& scratch) {
    FisherRun(checkpoint, config, tokens, scratch, place).run().write(file);
  });
}

void add_fishers(const std::vector<std::filesystem::path>& files, const std::filesystem::path& out,
                 bool force) {
  add_files(files,
            {.kind = "fisher",
             .totals = {"/loss_sum", "/channel_sum"},
             .counts = {"/num_sequences", "/num_tokens"},
             .name = "Fisher"},
            out, force);
}

Json fisher_summary(const std::filesystem::path& fisher) {
  const Hdf5Reader file(fisher);
  const FisherSums sums = read_fisher_sums(file);
  const auto num_sequences = static_cast<double>(sums.num_sequences);
  std::vector<double> score(sums.channel_sum.size() / static_cast<std::size_t>(2 * sums.kv_dim));
  for (std::size_t i = 0; i < sums.channel_sum.size(); ++i) {
    score[i / static_cast<std::size_t>(2 * sums.kv_dim)] += sums.channel_sum[i] / num_sequences;
  }
  return {{"num_sequences", sums.num_sequences},
          {"num_tokens", sums.num_tokens},
          {"mean_nll", sums.loss_sum / num_sequences},
          {"score", score}};
}

}  // namespace kvc
