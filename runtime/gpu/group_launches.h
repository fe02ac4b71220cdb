// Further launches of a step for layers with several segments: latent groups, and coded and plain layers with coded
// tokens.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "runtime/gpu/gpu_cache.h"
#include "runtime/gpu/gpu_model.h"
#include "runtime/gpu/group_scratch.h"
#include "runtime/gpu/step_executor.h"
#include "runtime/gpu/step_launches.h"
#include "runtime/gpu/step_state.h"

namespace kvc {

class GroupLaunches {
 public:
  // capacity: tokens that the longest sequence may have. All arguments must outlive it.
  GroupLaunches(const GpuModel& model, const GpuCache& cache, const StepState& state,
                std::int64_t capacity, const StepExecutor& executor, StepLaunches& launches);

  // Computes the new token's latents from the layer's normed input, if they are stored or kept.
  void add_latents(int layer);
  // Destinations of the new token's key and value in a group's layer; none if latents replace the projections.
  void set_stores(int layer, AppendRows& append) const;
  // Attention over the whole group, to memory.attended. `query`: a launch without rows and partials.
  void add_attention(int layer, const DenseAttention& query, const DeviceRope& rope);
  // The same for a layer with exact tokens and codes: its query and its new token's row. Fused layers, which store
  // nothing, only need the query.
  void set_coded_query(AppendRows& append) const;
  void set_coded_stores(int layer, AppendRows& append) const;
  // exact: a launch over the exact tokens of `layers`, without their number and partials.
  void add_coded_attention(const std::vector<StoredLayers>& layers, const DenseAttention& exact,
                           const DeviceRope& rope);

 private:
  // Latents of one form: their rows, their factors, and their number per sequence.
  struct LatentRows {
    const GpuRows& rows;
    const RankFactors& factors;
    const GpuRows* positions;  // null: a run from first_position on
    int first_position;
    const at::Tensor& num_rows;
    const std::int32_t* first_rows;   // or null
    const GpuBasis* basis = nullptr;  // of each sequence; null: the factors'
  };
  const LatentGroup& spec_of(int group) const {
    return cache_.plan().groups[static_cast<std::size_t>(group)];
  }
  void add_weighted(int layer, int group, const Linear& latent_proj);
  void append(const at::Tensor& from, const GpuRows& to, const at::Tensor& rows, bool are_floats);
  DevicePartials add_dense(DenseAttention attention, const DeviceRows& key, const DeviceRows& value,
                           const at::Tensor& num_rows, std::size_t scratch);
  // segment: 0 or more; outputs are kept until they are combined.
  DevicePartials add_rank(const DenseAttention& query, const DeviceRope& rope,
                          const LatentRows& latents, std::size_t segment);
  // What a layer's window shows of codes or unmerged tokens (0) and of merged ones (1), or null without one.
  const std::int32_t* first_apart(const DenseAttention& query, int segment) const;
  DevicePartials add_rows(DenseAttention attention, const at::Tensor& num_rows,
                          std::size_t scratch);
  // Plain layers' codes, or a coded one's tiles.
  DevicePartials add_integers(const std::vector<StoredLayers>& layers, const DenseAttention& query,
                              const DeviceRope& rope);
  DevicePartials add_tiles(int layer, const DenseAttention& query, const DeviceRope& rope);
  // For attention with its latents or codes set; the rest follows from the query's.
  DevicePartials add_sums(RankAttention attention, const DenseAttention& query,
                          const DeviceRope& rope, ProjectValues values, std::size_t segment);
  void choose_launches(RankAttention& attention);
  void add_segment(std::size_t segment);

  const GpuModel& model_;
  const GpuCache& cache_;
  const StepState& state_;
  StepLaunches& launches_;
  std::int64_t num_sequences_;
  int multiprocessors_, shared_bytes_;
  GroupScratch scratch_;
};

}  // namespace kvc
