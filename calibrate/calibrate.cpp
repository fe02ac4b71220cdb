#include "calibrate/calibrate.h"

#include <optional>

#include "calibrate/layer_sums.h"
#include "calibrate/sum_files.h"
#include "core/error.h"
#include "core/output.h"
#include "core/progress.h"
#include "model/layer_stream.h"
#include "model/statistics_provenance.h"
#include "model/tensor_memory.h"

namespace kvc {
namespace {

constexpr std::int64_t kMemoryBytes = std::int64_t{1} << 30;  // larger tensors spill to disk

// The keys and values of the layer before the current one, for every token; each sequence's are
// replaced by the current layer's once both have been used.
class PreviousLayer {
 public:
  PreviousLayer(std::int64_t num_tokens, std::int64_t kv_dim,
                const std::filesystem::path& spill_directory) {
    const std::vector<std::int64_t> shape = {2, num_tokens, kv_dim};
    const auto bytes = 2 * num_tokens * kv_dim * static_cast<std::int64_t>(sizeof(float));
    rows_ = bytes > kMemoryBytes ? make_spilled_tensor(shape, at::kFloat, spill_directory)
                                 : at::empty(shape, at::kFloat);
  }
  at::Tensor key(std::int64_t first, std::int64_t count) {
    return rows_[0].narrow(0, first, count);
  }
  at::Tensor value(std::int64_t first, std::int64_t count) {
    return rows_[1].narrow(0, first, count);
  }

 private:
  at::Tensor rows_;  // [2, num_tokens, kv_dim]
};

void write_layers(LayerStream& stream, const ModelConfig& config, at::Device device,
                  PreviousLayer& previous, Hdf5Writer& file) {
  Progress progress("calibrate",
                    static_cast<std::int64_t>(config.num_layers) * stream.num_batches());
  for (int layer = 0; layer < config.num_layers; ++layer) {
    LayerSums sums(config.hidden_size, config.kv_dim(), device);
    std::optional<PairSums> pair;
    if (layer > 0) {
      pair.emplace(config.kv_dim(), device);
    }
    std::int64_t first = 0;
    stream.advance(1, [&](const LayerActivations& activations) {
      const at::Tensor key = activations.key.flatten(1), value = activations.value.flatten(1);
      const std::int64_t count = key.size(0);
      sums.add(activations.hidden, key, value);
      if (pair) {
        pair->add(previous.key(first, count), previous.value(first, count), key, value);
      }
      previous.key(first, count).copy_(key);
      previous.value(first, count).copy_(value);
      first += count;
      progress.advance();
    });
    sums.write(file, layer);
    if (pair) {
      pair->write(file, layer - 1);
    }
  }
}

}  // namespace

Provenance calibration_provenance(const Checkpoint& checkpoint, const TokenSet& tokens,
                                  const ComputePlace& place) {
  return statistics_provenance("calibration", checkpoint, tokens, place);
}

void calibrate(const Checkpoint& checkpoint, const TokenSet& tokens,
               const std::filesystem::path& out, bool force, const ComputePlace& place) {
  const ModelConfig config = read_checked_model_config(checkpoint);
  OutputFile output(out, force);
  Hdf5Writer file(output.path());
  write_provenance(file, calibration_provenance(checkpoint, tokens, place));
  file.dataset("/num_tokens", std::vector<std::int64_t>{tokens.num_tokens()}, {1});
  LayerStreamOptions stream_options;
  stream_options.place = place;
  stream_options.batch_tokens = 1;  // every sequence alone
  stream_options.memory_bytes = kMemoryBytes;
  stream_options.spill_directory = output.path().parent_path();
  LayerStream stream(checkpoint, config, tokens, stream_options);
  PreviousLayer previous(tokens.num_tokens(), config.kv_dim(), stream_options.spill_directory);
  write_layers(stream, config, place.device, previous, file);
  file.close();
  output.commit();
}

void add_calibrations(const std::vector<std::filesystem::path>& files,
                      const std::filesystem::path& out, bool force) {
  add_files(files, {.kind = "calibration", .groups = {"/layers", "/pairs"}, .equal_options = {}},
            out, force);
}

}  // namespace kvc
