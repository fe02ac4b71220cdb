#include "fisher/fisher.h"

#include "core/error.h"
#include "core/output.h"
#include "core/progress.h"
#include "fisher/backward.h"
#include "fisher/boundary_file.h"
#include "fisher/fisher_file.h"
#include "model/layer_stream.h"
#include "model/statistics_provenance.h"

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
        stream_(checkpoint, config, tokens, stream_options(directory, place)),
        boundaries_(config.num_layers + 1, tokens.num_tokens(), config.hidden_size, directory),
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
  static LayerStreamOptions stream_options(const std::filesystem::path& directory,
                                           const ComputePlace& place) {
    LayerStreamOptions options;
    options.place = place;
    options.batch_tokens = 1;  // every sequence alone
    options.spill_directory = directory;
    return options;
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
        boundaries_.write(layer, first, stream_.boundary(index));
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
      boundaries_.write(config_.num_layers, first, gradient.hidden);
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
          config_, stream_.rope(), weights, layer,
          place_.take(boundaries_.read(layer, first, count)), batch,
          place_.take(boundaries_.read(layer + 1, first, count)), /*with_hidden=*/layer > 0);
      squares.add(gradient.k_proj, gradient.v_proj);
      if (layer > 0) {
        boundaries_.write(layer, first, gradient.hidden);
      }
    });
    sums.set_layer(layer, squares);
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  ComputePlace place_;
  LayerStream stream_;
  BoundaryFile boundaries_;
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
  OutputFile output(out, force);
  const FisherSums sums =
      FisherRun(checkpoint, config, tokens, output.path().parent_path(), place).run();
  Hdf5Writer file(output.path());
  write_provenance(file, fisher_provenance(checkpoint, tokens, place));
  sums.write(file);
  file.close();
  output.commit();
}

}  // namespace kvc
