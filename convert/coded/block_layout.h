// Which keys and values are coded together: a plan's coded blocks before their bits are known.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "convert/convert.h"
#include "core/kv_plan.h"
#include "model/config.h"

namespace kvc {

// The scope of every layer. UsageError where --scope names no scope, or layers that do not exist, overlap
// or are left out.
struct LayerScopes {
  std::vector<CodedScope> scopes;  // [num_layers]
  std::string reason;              // of --scope auto: a sentence; otherwise empty

  bool any(CodedScope scope) const;
};
LayerScopes choose_scopes(const ModelConfig& config, const ConvertSettings& settings);

// Layers whose statistics are taken together: as many as a group has where there are groups, else single.
std::vector<LayerRun> statistics_runs(const ModelConfig& config, const ConvertSettings& settings,
                                      const LayerScopes& scopes);
int statistics_layers(const ConvertSettings& settings, const LayerScopes& scopes);

// Ascending by layer, then head, without coefficients.
std::vector<CodedBlock> block_layout(const ModelConfig& config, const ConvertSettings& settings,
                                     const LayerScopes& scopes);

// Channels of a block's y.
std::int64_t num_channels(const CodedBlock& block, const ModelConfig& config);
// A covariance of so many channels is not trusted with fewer tokens.
std::int64_t least_calibration_tokens(const CodedBlock& block, const ModelConfig& config);
// Where these are in the y of a run of layers that holds the block. [num_channels]
std::vector<std::int64_t> channels_in_run(const CodedBlock& block, const LayerRun& run,
                                          const ModelConfig& config);
// "layers 0-3", "layer 4", "layer 4, KV head 1": for messages.
std::string name_of(const CodedBlock& block);

}  // namespace kvc
