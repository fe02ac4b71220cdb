// Inputs of a factorisation: the stacked weights of a group's layers, and the metrics that weight
// directions.
#pragma once

#include <ATen/ATen.h>

#include "convert/latent/latent_conversion.h"

namespace kvc {

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
