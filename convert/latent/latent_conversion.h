// Conversion of a plan's latent groups, one after the other.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <utility>
#include <vector>

#include "convert/conversion_job.h"
#include "model/layer_stream.h"

namespace kvc {

// One group on its way through a method.
struct GroupJob {
  const ConversionJob& conversion;
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

// What a report says of group `index` of the plan: its layers, its bytes per token.
void complete_report(GroupReport& report, const KvPlan& plan, int index, KvDtype dtype);

// As Method::convert: factorises group after group and sets the merge weights of the policy's rule.
std::vector<GroupReport> convert_latent_groups(ConversionJob& job,
                                               GroupResult (*convert_group)(GroupJob& job));

}  // namespace kvc
