// Runs a token set through a checkpoint a few layers at a time. Only their weights and one boundary
// of hidden states are in memory, so memory does not grow with the number of layers. A boundary that is large for the
// place's GPU lies in memory, and a large one there in a file.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "core/checkpoint.h"
#include "core/token_set.h"
#include "model/compute_place.h"
#include "model/decoder.h"

namespace kvc {

// Inputs of one layer for one batch of whole sequences. All tensors in the stream's place; the batch is
// on the CPU.
struct LayerActivations {
  int layer = 0;
  int batch_index = 0;
  const TokenBatch& batch;
  const LayerWeights& weights;
  at::Tensor hidden;  // [num_tokens, hidden_size], input of k_proj
  at::Tensor query;   // as in AttentionInput
  at::Tensor key;     // as in AttentionInput: with bias, before k_norm, pre-RoPE
  at::Tensor value;
};

struct LayerStreamOptions {
  ComputePlace place{};
  std::int64_t batch_tokens = 4096;  // sequences are grouped up to this many tokens
  std::int64_t memory_bytes = std::int64_t{1}
                              << 30;      // boundary above this spills to spill_directory
  std::filesystem::path spill_directory;  // empty: the system's temporary directory
};

class LayerStream {
 public:
  LayerStream(const Checkpoint& checkpoint, const ModelConfig& config, const TokenSet& tokens,
              LayerStreamOptions options);
  ~LayerStream();

  int num_batches() const;
  int next_layer() const { return next_layer_; }
  const RopeTables& rope() const { return rope_; }
  const TokenBatch& batch(int index) const;
  // Hidden states at the boundary before next_layer(), for one batch, on the CPU or the place's GPU, in its dtype.
  // [num_tokens, hidden_size]
  at::Tensor boundary(int batch_index) const;

  using Visitor = std::function<void(const LayerActivations&)>;
  // Runs the next `num_layers` layers and moves the boundary behind them. `visit` is called for
  // every (batch, layer), batches outermost, layers in order: for one batch, a group's layers
  // follow each other. Error naming the layer whose output is not finite.
  void advance(int num_layers, const Visitor& visit);
  // The same without moving the boundary: a second pass over the same layers follows.
  void peek(int num_layers, const Visitor& visit);

 private:
  struct State;
  void run(int num_layers, const Visitor& visit, bool move);
  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  LayerStreamOptions options_;
  RopeTables rope_;
  int next_layer_ = 0;
  std::unique_ptr<State> state_;
};

}  // namespace kvc
