#include "calibrate/calibrate.h"

#include <optional>

#include "calibrate/layer_sums.h"
#include "core/error.h"
#include "core/progress.h"
#include "model/layer_stream.h"
#include "model/statistics_provenance.h"
#include "model/sum_files.h"
#include "model/tensor_memory.h"

namespace kvc {
namespace {

// `previous` [2, num_tokens, kv_dim]: the keys and values of the layer before the current one, for every token; each
// sequence's are replaced by the current layer's once both have been used.
void write_layers(LayerStream& stream, const ModelConfig& config, at::Device device,
                  const at::Tensor& previous, Hdf5Writer& file) {
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
      const at::Tensor rows = previous.narrow(1, first, count);
      sums.add(activations.hidden, key, value);
      if (pair) {
        pair->add(rows[0], rows[1], key, value);
      }
      rows[0].copy_(key);
      rows[1].copy_(value);
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
  const Provenance provenance = calibration_provenance(checkpoint, tokens, place);
  write_sums(out, force, provenance, [&](Hdf5Writer& file, const std::filesystem::path& scratch) {
    file.dataset("/num_tokens", std::vector<std::int64_t>{tokens.num_tokens()}, {1});
    LayerStream stream(checkpoint, config, tokens,
                       {.place = place,
                        .batch_tokens = 1,  // every sequence alone
                        .spill_directory = scratch});
    const at::Tensor previous =
        make_scratch_tensor({2, tokens.num_tokens(), config.kv_dim()}, at::kFloat, scratch);
    write_layers(stream, config, place.device, previous, file);
  });
}

void add_calibrations(const std::vector<std::filesystem::path>& files,
                      const std::filesystem::path& out, bool force) {
  add_files(files, {.kind = "calibration", .groups = {"/layers", "/pairs"}}, out, force);
}

}  // namespace kvc
