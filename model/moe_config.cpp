#include "model/config_parts.h"

#include <algorithm>

#include "core/error.h"

namespace kvc {
namespace {

constexpr std::int64_t kMaxExperts = std::int64_t{1} << 12;
constexpr std::int64_t kMaxExpertSize = std::int64_t{1} << 22;

// The first of two spellings that is present; transformers writes either.
const char* spelled(const ConfigReader& reader, const char* key, const char* other) {
  return reader.find(key) == nullptr && reader.find(other) != nullptr ? other : key;
}

MoeConfig mixtral_experts(const ConfigReader& reader, int num_layers,
                          std::int64_t intermediate_size) {
  MoeConfig moe;
  const char* count = spelled(reader, "num_local_experts", "num_experts");
  moe.num_experts = reader.integer_or(count, 8, 1, kMaxExperts);
  moe.experts_per_token = reader.integer_or("num_experts_per_tok", 2, 1, kMaxExperts);
  moe.expert_size = intermediate_size;
  moe.normalize = true;
  moe.layers.assign(static_cast<std::size_t>(num_layers), true);
  return moe;
}

// Every decoder_sparse_step-th layer, but none of mlp_only_layers.
std::vector<bool> qwen_expert_layers(const ConfigReader& reader, int num_layers) {
  const std::int64_t step = reader.integer_or("decoder_sparse_step", 1, 1, INT32_MAX);
  const std::vector<std::int64_t> dense = reader.integers("mlp_only_layers");
  std::vector<bool> layers;
  for (int layer = 0; layer < num_layers; ++layer) {
    const bool listed = std::find(dense.begin(), dense.end(), layer) != dense.end();
    layers.push_back(!listed && (layer + 1) % step == 0);
  }
  return layers;
}

struct QwenDefaults {
  std::int64_t num_experts, experts_per_token, expert_size;
};

MoeConfig qwen_experts(const ConfigReader& reader, int num_layers, const QwenDefaults& defaults) {
  MoeConfig moe;
  const char* count = spelled(reader, "num_experts", "num_local_experts");
  moe.num_experts = reader.integer_or(count, defaults.num_experts, 0, kMaxExperts);
  moe.experts_per_token =
      reader.integer_or("num_experts_per_tok", defaults.experts_per_token, 1, kMaxExperts);
  moe.expert_size =
      reader.integer_or("moe_intermediate_size", defaults.expert_size, 1, kMaxExpertSize);
  moe.normalize = reader.boolean_or("norm_topk_prob", false);
  moe.layers = qwen_expert_layers(reader, num_layers);
  if (moe.num_experts == 0) {
    moe.layers.assign(moe.layers.size(), false);
  }
  return moe;
}

MoeConfig qwen2_experts(const ConfigReader& reader, int num_layers) {
  MoeConfig moe = qwen_experts(reader, num_layers, {60, 4, 1408});
  moe.shared_size = reader.integer_or("shared_expert_intermediate_size", 5632, 1, kMaxExpertSize);
  moe.shared_gate = true;
  return moe;
}

// Layers from first_k_dense_replace on whose index is a multiple of moe_layer_freq.
std::vector<bool> deepseek_expert_layers(const ConfigReader& reader, int num_layers) {
  const std::int64_t first = reader.integer_or("first_k_dense_replace", 0, 0, INT32_MAX);
  const std::int64_t step = reader.integer_or("moe_layer_freq", 1, 1, INT32_MAX);
  std::vector<bool> layers;
  for (int layer = 0; layer < num_layers; ++layer) {
    layers.push_back(layer >= first && layer % step == 0);
  }
  return layers;
}

void read_deepseek_groups(const ConfigReader& reader, MoeConfig& moe) {
  const std::string method = reader.text_or("topk_method", "greedy");
  KVC_CHECK(method == "greedy" || method == "group_limited_greedy",
            "{}: \"topk_method\" is \"{}\"; supported: greedy, group_limited_greedy",
            reader.subject(), method);
  if (method == "greedy") {
    return;
  }
  moe.num_groups = reader.integer("n_group", 1, moe.num_experts);
  moe.groups_per_token = reader.integer("topk_group", 1, moe.num_groups);
  KVC_CHECK(moe.num_experts % moe.num_groups == 0,
            "{}: {} experts cannot be split into \"n_group\" {} groups evenly", reader.subject(),
            moe.num_experts, moe.num_groups);
}

MoeConfig deepseek_experts(const ConfigReader& reader, int num_layers) {
  MoeConfig moe;
  moe.layers = deepseek_expert_layers(reader, num_layers);
  const bool none = std::find(moe.layers.begin(), moe.layers.end(), true) == moe.layers.end();
  if (none || (reader.contains("n_routed_experts") && reader.find("n_routed_experts") == nullptr)) {
    moe.layers.assign(moe.layers.size(), false);
    return moe;
  }
  const char* count = spelled(reader, "n_routed_experts", "num_experts");
  moe.num_experts = reader.integer_or(count, 64, 1, kMaxExperts);
  moe.experts_per_token = reader.integer("num_experts_per_tok", 1, kMaxExperts);
  moe.expert_size = reader.integer_or("moe_intermediate_size", 1407, 1, kMaxExpertSize);
  const bool no_shared =
      reader.contains("n_shared_experts") && reader.find("n_shared_experts") == nullptr;
  const std::int64_t shared =
      no_shared ? 0 : reader.integer_or("n_shared_experts", 2, 0, kMaxExperts);
  moe.shared_size = shared * moe.expert_size;
  moe.float_router = true;
  moe.routed_scale = reader.number_or("routed_scaling_factor", 1);
  read_deepseek_groups(reader, moe);
  const std::string score = reader.text_or("scoring_func", "softmax");
  KVC_CHECK(score == "softmax", "{}: \"scoring_func\" is \"{}\"; only \"softmax\" is supported",
            reader.subject(), score);
  KVC_CHECK(!reader.boolean_or("norm_topk_prob", false),
            "{}: \"norm_topk_prob\" is true, which implementations of this family treat "
            "differently; only false is supported",
            reader.subject());
  return moe;
}

MoeConfig read_experts(const ConfigReader& reader, ExpertStyle style, int num_layers,
                       std::int64_t intermediate_size) {
  switch (style) {
    case ExpertStyle::kMixtral:
      return mixtral_experts(reader, num_layers, intermediate_size);
    case ExpertStyle::kQwen:
      return qwen_experts(reader, num_layers, {128, 8, 768});
    case ExpertStyle::kQwen2:
      return qwen2_experts(reader, num_layers);
    case ExpertStyle::kDeepseek:
      return deepseek_experts(reader, num_layers);
    case ExpertStyle::kNone:
      break;
  }
  return {};
}

}  // namespace

std::optional<MoeConfig> resolve_moe(const ConfigReader& reader, ExpertStyle style, int num_layers,
                                     std::int64_t intermediate_size) {
  MoeConfig moe = read_experts(reader, style, num_layers, intermediate_size);
  moe.style = style;
  if (std::find(moe.layers.begin(), moe.layers.end(), true) == moe.layers.end()) {
    return std::nullopt;
  }
  const std::int64_t choices = moe.num_experts / moe.num_groups * moe.groups_per_token;
  KVC_CHECK(moe.experts_per_token <= choices,
            "{}: \"num_experts_per_tok\" is {}, but a token can choose among {} experts only",
            reader.subject(), moe.experts_per_token, choices);
  return moe;
}

}  // namespace kvc
