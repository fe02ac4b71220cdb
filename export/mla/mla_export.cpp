#include "export/mla/mla_export.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "core/output.h"
#include "core/progress.h"
#include "export/export_config.h"
#include "export/held_source.h"
#include "export/mla/mla_layer.h"
#include "export/tensor_sources.h"
#include "model/weights.h"

namespace kvc {
namespace {

namespace fs = std::filesystem;

constexpr int kLayersToChooseFrom =
    4;  // evenly spread: a shape's loss takes an eigendecomposition each

struct Source {
  Checkpoint checkpoint;
  ModelConfig config;
  fs::path covariance;

  MlaStatistics statistics(int layer) const {
    return read_mla_statistics(covariance, checkpoint.hash(), config, layer);
  }
};

MlaShape choose_shape(const Source& source, double kept_ratio) {
  std::vector<MlaShape> shapes = mla_shapes(source.config, kept_ratio);
  const int chosen = std::min(kLayersToChooseFrom, source.config.num_layers);
  Progress progress("rotary channels", static_cast<std::int64_t>(shapes.size()) * chosen);
  std::vector<double> losses(shapes.size(), 0);
  for (int i = 0; i < chosen; ++i) {
    const int layer = (2 * i + 1) * source.config.num_layers / (2 * chosen);
    const MlaStatistics statistics = source.statistics(layer);
    for (std::size_t shape = 0; shape < shapes.size(); ++shape) {
      losses[shape] += mla_loss(statistics, source.config, shapes[shape]);
      progress.advance();
    }
  }
  return shapes[static_cast<std::size_t>(std::ranges::min_element(losses) - losses.begin())];
}

GroupedWeights read_weights(const Source& source, int layer) {
  const auto rows = [&](const ProjectionRows& of) {
    return load_rows(source.checkpoint, of, source.config.hidden_size, at::kDouble);
  };
  return {.query = rows(query_rows(source.config, layer)),
          .key = rows(key_rows(source.config, layer)),
          .value = rows(value_rows(source.config, layer))};
}

// The layer whose tensors are being written; the files have a layer's tensors one after the other.
class FittedLayer {
 public:
  FittedLayer(const Source& source, MlaShape shape, at::ScalarType stored)
      : source_(source), shape_(std::move(shape)), stored_(stored) {}

  const MlaLayer& at(int layer) {
    if (layer != index_) {
      layer_ = fit_mla_layer(read_weights(source_, layer), source_.statistics(layer),
                             source_.config, shape_, stored_);
      index_ = layer;
    }
    return layer_;
  }

 private:
  const Source& source_;
  MlaShape shape_;
  at::ScalarType stored_;
  int index_ = -1;
  MlaLayer layer_;
};

struct NamedPart {
  const char* name;
  at::Tensor MlaLayer::*part;
  std::vector<std::int64_t> shape;
};

std::vector<NamedPart> parts_of(const ModelConfig& config, const MlaShape& shape) {
  const std::int64_t heads = config.num_heads, head_dim = config.head_dim;
  const std::int64_t hidden = config.hidden_size, rank = shape.kv_lora_rank;
  return {
      {"q_proj.weight", &MlaLayer::q_proj, {heads * (head_dim + shape.rope.rotary_dim), hidden}},
      {"kv_a_proj_with_mqa.weight", &MlaLayer::kv_a_proj, {shape.width(), hidden}},
      {"kv_a_proj_with_mqa.bias", &MlaLayer::kv_a_bias, {shape.width()}},
      {"kv_a_layernorm.weight", &MlaLayer::kv_a_norm, {rank}},
      {"kv_b_proj.weight", &MlaLayer::kv_b_proj, {2 * heads * head_dim, rank}}};
}

std::vector<TensorSource> mla_tensors(const Source& source, const MlaShape& shape,
                                      at::ScalarType stored) {
  const auto held = std::make_shared<Held>();
  const auto fitted = std::make_shared<FittedLayer>(source, shape, stored);
  std::vector<std::string> replaced;
  std::vector<TensorSource> sources;
  for (int layer = 0; layer < source.config.num_layers; ++layer) {
    for (const ProjectionRows& rows :
         {query_rows(source.config, layer), key_rows(source.config, layer),
          value_rows(source.config, layer)}) {
      replaced.push_back(rows.tensor);
    }
    const std::string prefix = layer_prefix(source.config, layer) + "self_attn.";
    for (const NamedPart& part : parts_of(source.config, shape)) {
      sources.push_back(computed_source(
          prefix + part.name, stored, part.shape, held,
          [fitted, layer, stored, of = part.part] { return (fitted->at(layer).*of).to(stored); }));
    }
    const std::int64_t hidden = source.config.hidden_size;
    sources.push_back(computed_source(prefix + "o_proj.bias", stored, {hidden}, held,
                                      [hidden, stored] { return at::zeros({hidden}, stored); }));
  }
  for (TensorSource& other : other_tensors(source.checkpoint, replaced, held)) {
    sources.push_back(std::move(other));
  }
  return sources;
}

}  // namespace

MlaShape export_mla_into(const MlaExportOptions& options, const fs::path& directory) {
  Checkpoint checkpoint = Checkpoint::open(options.checkpoint);
  ModelConfig config = read_checked_model_config(checkpoint);
  check_mla_source(config, checkpoint.directory().string());
  const Source source{std::move(checkpoint), std::move(config), options.covariance};
  MlaShape shape = choose_shape(source, options.kept_ratio);
  log_info(fmt::format("DeepSeek-V2's layout: {} channels of contents and {} rotary ones of {}",
                       shape.kv_lora_rank, shape.rope.rotary_dim, 2 * source.config.kv_dim()));
  const at::ScalarType stored = storage_dtype(source.checkpoint, source.config);
  write_checkpoint_tensors(directory, mla_tensors(source, shape, stored));
  write_file(directory / "config.json",
             dump_json(mla_config(source.checkpoint, source.config, shape)));
  copy_companion_files(source.checkpoint, directory, true);
  return shape;
}

}  // namespace kvc
