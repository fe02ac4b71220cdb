// What a step launches for the layers of each kind: plain and fused ones, those of which some tokens are codes, latent
// groups, and layers under token policies. make_layer_launches() alone tells them apart.
#pragma once

#include <memory>
#include <vector>

#include "runtime/gpu/segments.h"
#include "runtime/gpu/step_launches.h"

namespace kvc {

class LayerLaunches {
 public:
  virtual ~LayerLaunches() = default;

  // True if a key and a value of the new token are made of the layer's normed input.
  virtual bool makes_keys(int layer) const = 0;
  // From that input to the new token's latents, where they are stored or held.
  virtual void add_latents(int /*layer*/) {}
  // Where the new token's query, key and value go.
  virtual void set_stores(int layer, AppendRows& append) const = 0;
  // Attention over all that the layer reads, to memory.attended; under a running policy also what becomes of the new
  // token and of others. `query`: a launch without rows, of memory's partials.
  virtual void add_attention(int layer, const DenseAttention& query, const DeviceRope& rope) = 0;
};

// For each layer. [num_layers]
std::vector<std::shared_ptr<LayerLaunches>> make_layer_launches(StepLaunches& launches);

// For each kind. `segments` and `launches` outlive them.
std::shared_ptr<LayerLaunches> plain_launches(StepLaunches& launches);
std::shared_ptr<LayerLaunches> coded_launches(StepLaunches& launches,
                                              const std::shared_ptr<Segments>& segments);
std::shared_ptr<LayerLaunches> group_launches(StepLaunches& launches,
                                              const std::shared_ptr<Segments>& segments);
std::shared_ptr<LayerLaunches> running_launches(
    StepLaunches& launches);  // zeromerge, h2o, streamingllm
std::shared_ptr<LayerLaunches> voted_launches(StepLaunches& launches);  // snapkv, pyramidkv

}  // namespace kvc
