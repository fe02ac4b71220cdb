// The conversion methods: one file each, one row each in the table.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "convert/convert.h"
#include "core/conversion_file.h"
#include "core/kv_plan.h"
#include "model/config.h"
#include "model/layer_stream.h"

namespace kvc {

// One group on its way through a method.
struct GroupJob {
  const Checkpoint& checkpoint;
  const ModelConfig& config;
  const ConvertSettings& settings;
  const std::filesystem::path& calibration;   // calibration.h5, or empty
  const std::vector<double>& fisher_channel;  // [num_layers, 2, kv_dim], or empty
  at::Device device;
  LayerStream&
      stream;  // stands before the group's first layer; the method moves it behind the last
  int index = 0;
  LatentGroup& group;  // ranks are lowered to the effective ones
};

struct GroupResult {
  std::vector<std::pair<std::string, at::Tensor>>
      tensors;  // float32; "latent_proj", "key.latent_proj", ...
  GroupReport report;
};

struct Method {
  std::string_view name;
  // Settings as the method's paper has them.
  void (*apply_paper_preset)(ConvertSettings& settings);
  // Settings that the method leaves no choice in.
  void (*fix_settings)(ConvertSettings& settings);
  // Groups with their ranks. `fisher_scores` [num_layers, 2] (key, value), or null.
  std::vector<LatentGroup> (*plan_groups)(const ModelConfig& config,
                                          const ConvertSettings& settings,
                                          const std::vector<double>* fisher_scores);
  GroupResult (*convert_group)(GroupJob& job);
};

std::span<const Method> methods();
const Method& find_method(std::string_view name);  // UsageError listing the known ones

// The rows of the table.
extern const Method kCommonKv;
extern const Method kPalu;

// --rank-multiple, or its default for this model.
std::int64_t rank_multiple(const ModelConfig& config, const ConvertSettings& settings);

}  // namespace kvc
