// Keys and values that are coded together: a plan's coded blocks before their bits are known.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "convert/coded/coded_settings.h"
#include "core/kv_plan.h"
#include "model/config.h"

namespace kvc {

// The scope and the form of every layer. UsageError if --scope names no scope, or layers that do not exist, overlap or
// are missing, or if a layer cannot have the form.
struct LayerScopes {
  std::vector<CodedScope> scopes;  // [num_layers]
  std::vector<CodedForm> forms;    // [num_layers]
  std::string reason;              // reason of --scope auto: a sentence; otherwise empty
};
LayerScopes choose_scopes(const ModelConfig& config, const ConvertSettings& settings);
LayerScopes all_layers(const ModelConfig& config, const ConvertSettings& settings,
                       CodedScope scope);

// Ascending by layer, part and head, without coefficients; with gains where --gain is on.
std::vector<CodedBlock> block_layout(const ModelConfig& config, const ConvertSettings& settings,
                                     const LayerScopes& scopes);

// Those of a run's layers.
std::vector<CodedBlock> blocks_in(const std::vector<CodedBlock>& blocks, const LayerRun& run);

// Layers whose statistics are taken together: as many as a group has where blocks span layers, else single ones.
int statistics_layers(const ConvertSettings& settings, const std::vector<CodedBlock>& blocks);

// Channels of a block's y.
std::int64_t num_channels(const CodedBlock& block, const ModelConfig& config);
// Multiplications that rebuild a token's key of one KV head and layer, its means apart. A block of values: 0.
std::int64_t key_products(const CodedBlock& block, const ModelConfig& config);
// Fewest tokens for a covariance of that many channels.
std::int64_t least_calibration_tokens(const CodedBlock& block, const ModelConfig& config);
// Their indices in the y of a run of layers that contains the block. [num_channels]
std::vector<std::int64_t> channels_in_run(const CodedBlock& block, const LayerRun& run,
                                          const ModelConfig& config);
// "layers 0-3", "layer 4", "layer 4, KV head 1": for messages.
std::string name_of(const CodedBlock& block);

// --scope auto, where nobody says what is coded together: the scope whose cache and factors together take the fewest
// bytes at settings.tokens_in_flight, all scopes at the divergence that single heads have at settings.kept_ratio.
// --prefer speed, and forms other than full, allow single heads alone; balance allows groups only below a kept_ratio of
// 0.15, since each of their layers reads the code of all.
LayerScopes choose_scope(const ModelConfig& config, const ConvertSettings& settings);

}  // namespace kvc
