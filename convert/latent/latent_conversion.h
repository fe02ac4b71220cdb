// Conversion of a plan's latent groups, in order; on a GPU the next ones' factorisation runs beside.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <string>
#include <vector>

#include "convert/factor_choice.h"
#include "convert/latent/latent_settings.h"
#include "model/layer_stream.h"

namespace kvc {

// One group during its conversion.
struct GroupJob {
  const ConversionJob& conversion;
  LayerStream& stream;  // is before the group's first layer; the method moves it behind the last
  int index = 0;
  LatentGroup& group;  // ranks are lowered to the effective ones
};

struct GroupResult {
  NamedTensors
      tensors;  // float32; "latent_proj", "key.latent_proj", ... and their forms (add_choice)
  GroupReport report;
};

// Place of a pass over the calibration text: float32 on the job's device.
LayerStreamOptions stream_options(const ConversionJob& job);

// Report of group `index` of the plan: its layers and bytes per token.
void complete_report(GroupReport& report, const KvPlan& plan, int index, KvDtype dtype);

// Steps of a method for one group.
struct GroupSteps {
  // These do not use the layer stream: on a GPU they run ahead of it, each on its own thread and CUDA stream,
  // so loading and products of one group overlap with another's eigendecomposition. Only the first may read
  // statistics, because the HDF5 library serves one thread.
  std::vector<std::function<void(const GroupJob& job)>> ahead;
  std::function<GroupResult(GroupJob& job)> convert;
};

// As Method::convert: runs the steps for each group and sets the merge weights of the policy's rule. The
// results do not depend on the overlap.
void convert_latent_groups(ConversionJob& job, const GroupSteps& steps);

// Inputs of a factorisation: the stacked weights of a group's layers, and the metrics that weight
// directions.
enum class Projection { kKey, kValue };

// k_proj's or v_proj's weight. [kv_dim, hidden_size] float64
at::Tensor load_projection(const GroupJob& job, int layer, Projection projection);
// [2 * num_layers * kv_dim, hidden_size] float64: layer by layer, key rows and then value rows.
at::Tensor load_stacked_proj(const GroupJob& job);
// The metric of the group's inputs from calibration.h5, read layer by layer; undefined for factor
// plain.
at::Tensor load_metric(const GroupJob& job);
// E[y y^T] of the group's stacked bias-free keys and values over the calibration tokens, from a
// pass that does not move the stream. [rows, rows] float64
at::Tensor measure_output_moment(GroupJob& job);

}  // namespace kvc
