#include "fisher/metric.h"

#include <utility>

#include "core/error.h"
#include "core/hdf5.h"
#include "core/progress.h"
#include "fisher/backward.h"
#include "model/layer_stream.h"
#include "model/statistics_provenance.h"
#include "model/sum_files.h"

namespace kvc {
namespace {

// Where a sequence's halves lie in files of first and of second halves.
struct Halves {
  std::int64_t num_cached = 0, num_scored = 0;
  std::int64_t first_cached = 0, first_scored = 0, first_counted = 0;
};

std::vector<Halves> halves_of(const TokenSet& tokens, std::int64_t sink_tokens) {
  std::vector<Halves> all;
  Halves next;
  for (const auto& sequence : tokens.sequences) {
    const auto length = static_cast<std::int64_t>(sequence.size());
    next.num_cached = length / 2;
    next.num_scored = length - next.num_cached;
    KVC_CHECK(next.num_cached > sink_tokens,
              "the token set has a sequence of {} tokens; the metric reads its first half without "
              "the first {}. Give sequences of at least {}",
              length, sink_tokens, 2 * sink_tokens + 2);
    all.push_back(next);
    next.first_cached += next.num_cached;
    next.first_scored += next.num_scored;
    next.first_counted += next.num_cached - sink_tokens;
  }
  KVC_CHECK(!all.empty(), "the token set is empty");
  return all;
}

// A sequence's own draw, wherever it stands in a token set. FNV-1a.
std::uint64_t label_seed(std::uint64_t seed, const at::Tensor& ids) {
  std::uint64_t hash = 14695981039346656037u ^ seed;
  const std::int64_t* id = ids.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < ids.size(0); ++i) {
    hash = (hash ^ static_cast<std::uint64_t>(id[i])) * 1099511628211u;
  }
  return hash;
}

class MetricRun {
 public:
  MetricRun(const Checkpoint& checkpoint, const ModelConfig& config, const TokenSet& tokens,
            const MetricOptions& options, std::filesystem::path directory,
            const ComputePlace& place)
      : checkpoint_(checkpoint),
        config_(config),
        options_(options),
        place_(place),
        directory_(std::move(directory)),
        halves_(halves_of(tokens, options.joint.sink_tokens)),
        stream_(checkpoint, config, tokens,
                {.place = place, .batch_tokens = 1, .spill_directory = directory_}),
        cached_(make_pass_tensor(
            {config.num_layers, halves_.back().first_cached + halves_.back().num_cached,
             2 * config.kv_dim()},
            at::kFloat, place, directory_, /*memory_bytes=*/0)),
        scored_(make_pass_tensor(
            {config.num_layers + 1, halves_.back().first_scored + halves_.back().num_scored,
             config.hidden_size},
            at::kFloat, place, directory_, /*memory_bytes=*/0)),
        progress_("metric", std::int64_t{2 * config.num_layers + 1} * stream_.num_batches()) {
    num_tokens_ =
        halves_.back().first_counted + halves_.back().num_cached - options.joint.sink_tokens;
    num_scored_ = halves_.back().first_scored + halves_.back().num_scored;
  }

  void write(Hdf5Writer& file) {
    forward();
    differentiate_loss();
    std::vector<LayerRun> runs = layer_runs(config_, options_.joint.layers_per_group);
    for (auto run = runs.rbegin(); run != runs.rend(); ++run) {
      JointMoment moment(*run, num_tokens_, {config_.kv_dim(), config_.kv_dim()}, directory_);
      for (int layer = run->end() - 1; layer >= run->first_layer; --layer) {
        differentiate_layer(layer, moment);
      }
      const JointSums sums = moment.sums(place_.device);
      KVC_CHECK(at::isfinite(sums.second_moment).all().item<bool>(),
                "layers {}-{}: their gradients are not finite; does the checkpoint hold NaN or "
                "infinity?",
                run->first_layer, run->end() - 1);
      write_tensor(file, fmt::format("/metric/{}/second_moment", run->first_layer),
                   sums.second_moment, {"stacked channel", "stacked channel"});
    }
    file.dataset("/num_tokens", std::vector<std::int64_t>{num_tokens_}, {1});
    file.dataset("/num_scored", std::vector<std::int64_t>{num_scored_}, {1});
    file.dataset("/loss_sum", std::vector<double>{loss_sum_}, {1});
  }

 private:
  const Halves& halves(int index) const { return halves_[static_cast<std::size_t>(index)]; }

  at::Tensor cached(int layer, const Halves& half) const {
    return cached_[layer].narrow(0, half.first_cached, half.num_cached);
  }
  at::Tensor scored(int boundary, const Halves& half) const {
    return scored_[boundary].narrow(0, half.first_scored, half.num_scored);
  }

  template <typename Function>
  void for_each_sequence(const Function& function) {
    for (int index = 0; index < stream_.num_batches(); ++index) {
      function(index, halves(index));
      progress_.advance();
    }
  }

  void forward() {
    for (int layer = 0; layer < config_.num_layers; ++layer) {
      for_each_sequence([&](int index, const Halves& half) {
        scored(layer, half)
            .copy_(stream_.boundary(index).narrow(0, half.num_cached, half.num_scored));
      });
      stream_.advance(1, [&](const LayerActivations& activations) {
        const Halves& half = halves(activations.batch_index);
        const at::Tensor key = activations.weights.k_norm.over_heads(activations.key);
        cached(layer, half)
            .copy_(at::cat({key.narrow(0, 0, half.num_cached).flatten(1),
                            activations.value.narrow(0, 0, half.num_cached).flatten(1)},
                           1));
      });
    }
  }

  void differentiate_loss() {
    const ModelWeights weights =
        to_device(load_model_weights(checkpoint_, config_, place_.dtype), place_.device);
    for_each_sequence([&](int index, const Halves& half) {
      const LossGradient gradient = sampled_loss_gradient(
          config_, weights,
          place_.take(stream_.boundary(index).narrow(0, half.num_cached, half.num_scored)),
          label_seed(options_.seed, stream_.batch(index).ids));
      loss_sum_ += gradient.loss;
      scored(config_.num_layers, half).copy_(gradient.hidden);
    });
    check_finite_loss(checkpoint_, loss_sum_);
  }

  CachedRows read_cached(int layer, const Halves& half) const {
    const at::Tensor rows = place_.take(cached(layer, half));
    const auto heads = [&](std::int64_t part) {
      return rows.narrow(1, part * config_.kv_dim(), config_.kv_dim())
          .unflatten(1, {config_.num_kv_heads, config_.head_dim});
    };
    return {heads(0), heads(1)};
  }

  void differentiate_layer(int layer, JointMoment& moment) {
    const LayerWeights weights =
        to_device(load_layer(checkpoint_, config_, layer, place_.dtype), place_.device);
    const std::int64_t sinks = options_.joint.sink_tokens;
    for_each_sequence([&](int index, const Halves& half) {
      const TokenBatch& all = stream_.batch(index);
      const TokenBatch second_half{all.ids.narrow(0, half.num_cached, half.num_scored),
                                   all.positions.narrow(0, half.num_cached, half.num_scored),
                                   {half.num_scored}};
      const CacheGradient gradient = cache_gradient(
          config_, stream_.rope(), weights, layer, read_cached(layer, half),
          place_.take(scored(layer, half)), second_half, place_.take(scored(layer + 1, half)),
          /*with_hidden=*/layer > 0);
      const std::int64_t count = half.num_cached - sinks;
      moment.set(layer, half.first_counted, gradient.key.narrow(0, sinks, count).flatten(1),
                 gradient.value.narrow(0, sinks, count).flatten(1));
      if (layer > 0) {
        scored(layer, half).copy_(gradient.hidden);
      }
    });
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  MetricOptions options_;
  ComputePlace place_;
  std::filesystem::path directory_;
  std::vector<Halves> halves_;
  LayerStream stream_;
  at::Tensor cached_;  // of every layer, first halves: keys and values. float32, as the next
  // For every boundary, second halves: the residual stream; behind the layer that was differentiated last,
  // d loss / d boundary instead.
  at::Tensor scored_;
  std::int64_t num_tokens_ = 0, num_scored_ = 0;
  double loss_sum_ = 0;
  Progress progress_;
};

}  // namespace

Provenance metric_provenance(const Checkpoint& checkpoint, const TokenSet& tokens,
                             const MetricOptions& options, const ComputePlace& place) {
  return statistics_provenance("metric", checkpoint, tokens, place,
                               {{"joint_layers", options.joint.layers_per_group},
                                {"sink_tokens", options.joint.sink_tokens},
                                {"seed", options.seed}});
}

void metric(const Checkpoint& checkpoint, const TokenSet& tokens, const MetricOptions& options,
            const std::filesystem::path& out, bool force, const ComputePlace& place) {
  const ModelConfig config = read_checked_model_config(checkpoint);
  const Provenance provenance = metric_provenance(checkpoint, tokens, options, place);
  write_sums(out, force, provenance, [&](Hdf5Writer& file, const std::filesystem::path& scratch) {
    MetricRun(checkpoint, config, tokens, options, scratch, place).write(file);
  });
}

void add_metrics(const std::vector<std::filesystem::path>& files, const std::filesystem::path& out,
                 bool force) {
  add_files(files,
            {.kind = "metric",
             .groups = {"/metric"},
             .totals = {"/loss_sum"},
             .counts = {"/num_tokens", "/num_scored"}},
            out, force);
}

Json metric_summary(const std::filesystem::path& path) {
  const Hdf5Reader file(path);
  const std::int64_t num_scored = file.ints("/num_scored", {1}).front();
  return {{"num_tokens", file.ints("/num_tokens", {1}).front()},
          {"num_scored", num_scored},
          {"mean_nll", file.doubles("/loss_sum", {1}).front() / static_cast<double>(num_scored)}};
}

}  // namespace kvc
