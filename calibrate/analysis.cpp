#include "calibrate/analysis.h"

#include <ATen/ATen.h>

#include <cmath>
#include <cstring>
#include <tuple>
#include <vector>

#include "calibrate/calibrate.h"
#include "core/conversion_file.h"
#include "core/error.h"
#include "core/hdf5.h"
#include "core/output.h"
#include "core/progress.h"
#include "core/safetensors.h"
#include "model/config.h"
#include "model/layer_stream.h"
#include "model/sum_files.h"

namespace kvc {
namespace {

using Layers = std::vector<at::Tensor>;  // [num_layers] of [num_tokens, width] float32

// A of every layer's group [rank, hidden_size]; undefined where a layer has none.
Layers latent_projections(const std::filesystem::path& path, const Checkpoint& checkpoint,
                          const ModelConfig& config) {
  const Conversion conversion = read_conversion(path);
  KVC_CHECK(conversion.provenance.checkpoint_hash == checkpoint.hash(),
            "{}: converted from another checkpoint than {}", path.string(),
            checkpoint.directory().string());
  const SafetensorsFile file = SafetensorsFile::open(conversion.tensors);
  Layers projections(static_cast<std::size_t>(config.num_layers));
  bool any = false;
  for (std::size_t g = 0; g < conversion.plan.groups.size(); ++g) {
    const TensorInfo* info = file.find(fmt::format("kvconvert.groups.{}.latent_proj", g));
    if (info == nullptr) {
      continue;
    }
    KVC_CHECK(info->dtype == Dtype::kF32 && info->shape.size() == 2 &&
                  info->shape[1] == config.hidden_size,
              "{}: expected {} to be a float32 matrix with hidden_size {} columns",
              file.path().string(), info->name, config.hidden_size);
    const at::Tensor projection = at::empty(info->shape, at::kFloat);
    const auto bytes = file.bytes(*info);
    std::memcpy(projection.mutable_data_ptr(), bytes.data(), bytes.size());
    const LatentGroup& group = conversion.plan.groups[g];
    for (int layer = group.first_layer; layer < group.first_layer + group.num_layers; ++layer) {
      projections[static_cast<std::size_t>(layer)] = projection;
      any = true;
    }
  }
  KVC_CHECK(any, "{}: no group stores a latent per layer; convert with --method commonkv",
            path.string());
  return projections;
}

// Which tokens of the set are looked at: every `step`-th.
class Sample {
 public:
  Sample(std::int64_t num_tokens, std::int64_t most)
      : step_(std::max<std::int64_t>(1, (num_tokens + most - 1) / most)) {}
  // Rows of the next `count` tokens. Empty index where none is taken.
  at::Tensor rows(std::int64_t count) {
    const std::int64_t first = (step_ - next_ % step_) % step_;
    next_ += count;
    return first < count ? at::arange(first, count, step_, at::kLong) : at::empty({0}, at::kLong);
  }

 private:
  std::int64_t step_, next_ = 0;
};

struct Vectors {
  Layers hidden, key, value, latent;
};

Vectors collect(const Checkpoint& checkpoint, const ModelConfig& config, const TokenSet& tokens,
                const AnalysisOptions& options, const std::filesystem::path& scratch) {
  Layers projections;
  if (!options.conversion.empty()) {
    projections = latent_projections(options.conversion, checkpoint, config);
  }
  LayerStream stream(checkpoint, config, tokens, {.spill_directory = scratch});
  Vectors vectors;
  Progress progress("analyze", config.num_layers);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    Sample sample(tokens.num_tokens(), options.num_tokens);
    Layers hidden, key, value;
    stream.advance(1, [&](const LayerActivations& activations) {
      const at::Tensor rows = sample.rows(activations.hidden.size(0));
      hidden.push_back(activations.hidden.index_select(0, rows).to(at::kFloat));
      key.push_back(activations.key.flatten(1).index_select(0, rows).to(at::kFloat));
      value.push_back(activations.value.flatten(1).index_select(0, rows).to(at::kFloat));
    });
    vectors.hidden.push_back(at::cat(hidden));
    vectors.key.push_back(at::cat(key));
    vectors.value.push_back(at::cat(value));
    if (!projections.empty()) {
      const at::Tensor& projection = projections[static_cast<std::size_t>(layer)];
      vectors.latent.push_back(projection.defined() ? at::mm(vectors.hidden.back(), projection.t())
                                                    : at::Tensor());
    }
    progress.advance();
  }
  return vectors;
}

// Layers share a space of latents only within their group: one group after the other, blank between.
at::Tensor within_groups(const Layers& latents, const KvPlan& plan,
                         at::Tensor (*matrix_of)(const Layers&)) {
  const auto size = static_cast<std::int64_t>(latents.size());
  at::Tensor matrix = at::full({size, size}, std::nan(""), at::kDouble);
  for (const LatentGroup& group : plan.groups) {
    const Layers own(latents.begin() + group.first_layer,
                     latents.begin() + group.first_layer + group.num_layers);
    matrix.narrow(0, group.first_layer, group.num_layers)
        .narrow(1, group.first_layer, group.num_layers)
        .copy_(matrix_of(own));
  }
  return matrix;
}

class Report {
 public:
  explicit Report(const std::filesystem::path& directory)
      : directory_(directory), file_(directory / "similarity.h5") {}

  void provenance(const Provenance& provenance) { write_provenance(file_, provenance); }
  // `name`: "key_cosine"; `what`: "keys".
  void add(const std::string& name, const std::string& what, bool cosine,
           const at::Tensor& matrix) {
    const at::Tensor values = matrix.contiguous();
    const std::span<const double> numbers(values.const_data_ptr<double>(),
                                          static_cast<std::size_t>(values.numel()));
    write_tensor(file_, "/" + name, values, {"layer", "layer"});
    double low = 0;
    for (const double number : numbers) {
      low = std::isfinite(number) ? std::min(low, number) : low;
    }
    write_file(
        directory_ / (name + ".svg"),
        heat_map(fmt::format("{} of two layers' {}", cosine ? "Mean cosine" : "Linear CKA", what),
                 numbers, static_cast<int>(values.size(0)), low, 1));
  }
  void close() { file_.close(); }

 private:
  std::filesystem::path directory_;
  Hdf5Writer file_;
};

Provenance analysis_provenance(const Checkpoint& checkpoint, const TokenSet& tokens,
                               const AnalysisOptions& options) {
  Provenance provenance = calibration_provenance(checkpoint, tokens);
  provenance.kind = "analysis";
  provenance.options["num_tokens"] = options.num_tokens;
  return provenance;
}

}  // namespace

void analyze(const Checkpoint& checkpoint, const TokenSet& tokens, const AnalysisOptions& options,
             const std::filesystem::path& out, bool force) {
  KVC_CHECK_USAGE(options.num_tokens >= 2, "--sample {}: expected at least 2 tokens",
                  options.num_tokens);
  const ModelConfig config = read_checked_model_config(checkpoint);
  OutputDirectory output(out, force);
  const Vectors vectors = collect(checkpoint, config, tokens, options, output.path());
  Report report(output.path());
  report.provenance(analysis_provenance(checkpoint, tokens, options));
  const std::tuple<std::string, const char*, const Layers&> kinds[] = {
      {"hidden", "hidden states", vectors.hidden},
      {"key", "keys", vectors.key},
      {"value", "values", vectors.value}};
  for (const auto& [name, what, layers] : kinds) {
    report.add(name + "_cosine", what, true, cosine_matrix(layers));
    report.add(name + "_cka", what, false, cka_matrix(layers));
  }
  if (!vectors.latent.empty()) {
    const KvPlan plan = read_conversion(options.conversion).plan;
    report.add("latent_cosine", "latents", true,
               within_groups(vectors.latent, plan, cosine_matrix));
    report.add("latent_cka", "latents", false, within_groups(vectors.latent, plan, cka_matrix));
  }
  report.close();
  output.commit();
}

Json analysis_summary(const std::filesystem::path& out) {
  const Hdf5Reader file(out / "similarity.h5");
  Json json;
  json["matrices"] = Json::object();
  for (const std::string& name : file.children("/")) {
    const std::string path = "/" + name;
    const std::vector<std::int64_t> shape = file.shape(path);
    if (shape.size() != 2 || shape[0] != shape[1]) {
      continue;
    }
    const std::vector<double> values = file.doubles(path, shape);
    double sum = 0;
    std::int64_t count = 0;
    for (std::int64_t layer = 0; layer + 1 < shape[0]; ++layer) {
      const double value = values[static_cast<std::size_t>(layer * shape[0] + layer + 1)];
      sum += std::isfinite(value) ? value : 0;
      count += std::isfinite(value) ? 1 : 0;
    }
    json["num_layers"] = shape[0];
    json["matrices"][name] = count > 0 ? Json(sum / static_cast<double>(count)) : Json(nullptr);
  }
  return json;
}

}  // namespace kvc
