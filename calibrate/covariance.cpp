#include "calibrate/covariance.h"

#include <algorithm>
#include <optional>

#include "calibrate/attention_metric.h"
#include "core/error.h"
#include "core/hdf5.h"
#include "core/kv_plan.h"
#include "core/output.h"
#include "core/progress.h"
#include "model/cache_plan.h"
#include "model/layer_stream.h"
#include "model/statistics_provenance.h"
#include "model/sum_files.h"

namespace kvc {
namespace {

std::int64_t counted(std::int64_t length, const CovarianceOptions& options) {
  return std::max<std::int64_t>(0, length - options.joint.sink_tokens);
}

std::int64_t counted_tokens(const TokenSet& tokens, const CovarianceOptions& options) {
  std::int64_t count = 0;
  for (const auto& sequence : tokens.sequences) {
    count += counted(static_cast<std::int64_t>(sequence.size()), options);
  }
  return count;
}

void write_run(Hdf5Writer& file, const LayerRun& run, const JointSums& sums) {
  KVC_CHECK(at::isfinite(sums.second_moment).all().item<bool>(),
            "layers {}-{}: their keys or values are not finite; does the checkpoint hold NaN or "
            "infinity?",
            run.first_layer, run.end() - 1);
  const auto write = [&](const char* name, const at::Tensor& tensor) {
    const auto num_axes = static_cast<std::size_t>(tensor.dim());
    write_tensor(file, fmt::format("/joint/{}/{}", run.first_layer, name), tensor,
                 std::vector<std::string>(num_axes, "stacked channel"));
  };
  write("sum", sums.sum);
  write("second_moment", sums.second_moment);
}

struct LayerRows {
  at::Tensor key, value;  // [num_tokens, width]
};

// Keys before RoPE and after their norm, and values; of multi-head latent attention the latents before their norm
// alone.
LayerRows cached_rows(const ModelConfig& config, const LayerActivations& activations) {
  if (config.mla) {
    const at::Tensor latent = activations.weights.mla.kv_a_proj(activations.hidden)
                                  .narrow(-1, 0, config.mla->kv_lora_rank);
    return {latent, latent.narrow(-1, 0, 0)};
  }
  return {activations.weights.k_norm.over_heads(activations.key).flatten(1),
          activations.value.flatten(1)};
}

class CovarianceRun {
 public:
  CovarianceRun(const Checkpoint& checkpoint, const ModelConfig& config, const TokenSet& tokens,
                const CovarianceOptions& options, std::filesystem::path directory,
                const ComputePlace& place)
      : config_(config),
        options_(options),
        directory_(std::move(directory)),
        device_(place.device),
        num_tokens_(counted_tokens(tokens, options)),
        stream_(checkpoint, config, tokens,
                {.place = place, .batch_tokens = 1, .spill_directory = directory_}),
        progress_("covariance", std::int64_t{config.num_layers} * stream_.num_batches()) {}

  void write(Hdf5Writer& file) {
    for (const LayerRun& run : layer_runs(config_, options_.joint.layers_per_group)) {
      JointMoment moment(run, num_tokens_, grouped_widths(plain_plan(config_)), directory_);
      for (int layer = run.first_layer; layer < run.end(); ++layer) {
        add_layer(layer, moment, file);
      }
      write_run(file, run, moment.sums(device_));
    }
  }

 private:
  void add_layer(int layer, JointMoment& moment, Hdf5Writer& file) {
    std::optional<AttentionMetric> metric;
    if (options_.attention || options_.reach) {
      metric.emplace(config_, stream_.rope(), layer,
                     AttentionSums{.key = options_.attention, .reach = options_.reach}, device_);
    }
    std::int64_t first = 0;
    stream_.advance(1, [&](const LayerActivations& activations) {
      const std::int64_t count = counted(activations.hidden.size(0), options_);
      if (count > 0) {
        const std::int64_t sinks = options_.joint.sink_tokens;
        const LayerRows rows = cached_rows(config_, activations);
        moment.set(layer, first, rows.key.narrow(0, sinks, count),
                   rows.value.narrow(0, sinks, count));
        first += count;
        if (metric) {
          metric->add(activations, sinks);
        }
      }
      progress_.advance();
    });
    if (metric) {
      metric->write(file);
    }
  }

  const ModelConfig& config_;
  CovarianceOptions options_;
  std::filesystem::path directory_;
  at::Device device_;
  std::int64_t num_tokens_;
  LayerStream stream_;
  Progress progress_;
};

}  // namespace

Provenance covariance_provenance(const Checkpoint& checkpoint, const TokenSet& tokens,
                                 const CovarianceOptions& options, const ComputePlace& place) {
  Json described = {{"joint_layers", options.joint.layers_per_group},
                    {"sink_tokens", options.joint.sink_tokens},
                    {"attention", options.attention}};
  if (options.reach) {
    described["reach"] = true;
  }
  return statistics_provenance("covariance", checkpoint, tokens, place, described);
}

void covariance(const Checkpoint& checkpoint, const TokenSet& tokens,
                const CovarianceOptions& options, const std::filesystem::path& out, bool force,
                const ComputePlace& place) {
  const ModelConfig config = read_checked_model_config(checkpoint);
  KVC_CHECK(!config.mla || !(options.attention || options.reach),
            "{}: the attention metric requires keys and values per head; {} caches latents of all "
            "heads together. Leave --attention out",
            checkpoint.directory().string(), config.arch->model_type);
  const std::int64_t num_tokens = counted_tokens(tokens, options);
  KVC_CHECK(num_tokens > 0,
            "no calibration sequence is longer than the {} first tokens that --sink skips; give "
            "longer text or a smaller --sink",
            options.joint.sink_tokens);
  const Provenance provenance = covariance_provenance(checkpoint, tokens, options, place);
  write_sums(out, force, provenance, [&](Hdf5Writer& file, const std::filesystem::path& scratch) {
    file.dataset("/num_tokens", std::vector<std::int64_t>{num_tokens}, {1});
    CovarianceRun(checkpoint, config, tokens, options, scratch, place).write(file);
  });
}

void add_covariances(const std::vector<std::filesystem::path>& files,
                     const std::filesystem::path& out, bool force) {
  add_files(files, {.kind = "covariance", .groups = {"/joint", "/attention"}}, out, force);
}

Json covariance_summary(const std::filesystem::path& path) {
  const Hdf5Reader file(path);
  return {{"num_tokens", file.ints("/num_tokens", {1}).front()},
          {"num_runs", file.children("/joint").size()}};
}

}  // namespace kvc
