#include "fisher/fisher.h"

#include "core/error.h"
#include "core/progress.h"
#include "fisher/backward.h"
#include "model/layer_stream.h"
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
            make_pass_tensor({config.num_layers + 1, tokens.num_tokens(), config.hidden_size},
                             place.dtype, place, directory, /*memory_bytes=*/0)),
        channel_sum_(at::empty({config.num_layers, 2, config.kv_dim()}, at::kDouble)),
        rms_sum_(at::empty({config.num_layers, 2}, at::kDouble)),
        progress_("fisher", std::int64_t{2 * config.num_layers + 1} * stream_.num_batches()) {}

  void write(Hdf5Writer& file) {
    forward();
    differentiate_loss();
    for (int layer = config_.num_layers - 1; layer >= 0; --layer) {
      differentiate_layer(layer);
    }
    file.dataset("/num_sequences", std::vector<std::int64_t>{stream_.num_batches()}, {1});
    file.dataset("/num_tokens", std::vector<std::int64_t>{num_scored_}, {1});
    file.dataset("/loss_sum", std::vector<double>{loss_sum_}, {1});
    write_tensor(file, "/channel_sum", channel_sum_, {"layer", "key, value", "channel"});
    write_tensor(file, "/rms_sum", rms_sum_, {"layer", "key, value"});
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

  void differentiate_loss() {
    const ModelWeights weights =
        to_device(load_model_weights(checkpoint_, config_, place_.dtype), place_.device);
    for_each_sequence([&](int index, std::int64_t first) {
      const TokenBatch& batch = stream_.batch(index);
      const LossGradient gradient =
          loss_gradient(config_, weights, place_.take(stream_.boundary(index)), batch.ids);
      loss_sum_ += gradient.loss;
      num_scored_ += batch.ids.size(0) - 1;
      boundary(config_.num_layers, first, batch.ids.size(0)).copy_(gradient.hidden);
    });
    check_finite_loss(checkpoint_, loss_sum_);
  }

  void differentiate_layer(int layer) {
    const LayerWeights weights =
        to_device(load_layer(checkpoint_, config_, layer, place_.dtype), place_.device);
    at::Tensor squares = at::zeros({2, config_.kv_dim(), config_.hidden_size},
                                   at::TensorOptions(place_.device).dtype(at::kDouble));
    for_each_sequence([&](int index, std::int64_t first) {
      const TokenBatch& batch = stream_.batch(index);
      const std::int64_t count = batch.ids.size(0);
      const LayerGradient gradient = layer_gradient(
          config_, stream_.rope(), weights, layer, place_.take(boundary(layer, first, count)),
          batch, place_.take(boundary(layer + 1, first, count)), /*with_hidden=*/layer > 0);
      const at::Tensor both = at::stack({gradient.k_proj, gradient.v_proj}).to(at::kDouble);
      squares.addcmul_(both, both);
      if (layer > 0) {
        boundary(layer, first, count).copy_(gradient.hidden);
      }
    });
    const at::Tensor channels = squares.sum(-1);  // [2, kv_dim]
    KVC_CHECK(at::isfinite(channels).all().item<bool>(),
              "layer {}: its gradients are not finite; does the checkpoint hold NaN or infinity?",
              layer);
    channel_sum_[layer].copy_(channels);
    rms_sum_[layer].copy_(
        (squares / static_cast<double>(stream_.num_batches())).sqrt().sum({-2, -1}));
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  ComputePlace place_;
  LayerStream stream_;
  at::Tensor boundaries_;  // [num_layers + 1, num_tokens, hidden_size] in the place's dtype
  at::Tensor channel_sum_, rms_sum_;  // as in the file
  std::int64_t num_scored_ = 0;
  double loss_sum_ = 0;
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
              "the token set has a sequence of {} tokens; Fisher information requires at least "
              "two. Give longer text",
              sequence.size());
  }
  const Provenance provenance = fisher_provenance(checkpoint, tokens, place);
  write_sums(out, force, provenance, [&](Hdf5Writer& file, const std::filesystem::path& scratch) {
    FisherRun(checkpoint, config, tokens, scratch, place).write(file);
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
  const std::vector<std::int64_t> shape = file.shape("/channel_sum");
  KVC_CHECK(shape.size() == 3 && shape[0] > 0 && shape[1] == 2 && shape[2] > 0,
            "{}:/channel_sum: expected shape [num_layers, 2, kv_dim]", fisher.string());
  const std::int64_t num_sequences = file.ints("/num_sequences", {1}).front();
  const std::int64_t num_tokens = file.ints("/num_tokens", {1}).front();
  KVC_CHECK(num_sequences > 0 && num_tokens > 0, "{}: no count of a finished run", fisher.string());
  const std::vector<double> channels = file.doubles("/channel_sum", shape);
  const auto per_layer = static_cast<std::size_t>(2 * shape[2]);
  std::vector<double> score(channels.size() / per_layer);
  for (std::size_t i = 0; i < channels.size(); ++i) {
    score[i / per_layer] += channels[i] / static_cast<double>(num_sequences);
  }
  return {{"num_sequences", num_sequences},
          {"num_tokens", num_tokens},
          {"mean_nll", file.doubles("/loss_sum", {1}).front() / static_cast<double>(num_sequences)},
          {"score", score}};
}

}  // namespace kvc
