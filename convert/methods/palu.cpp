// Palu: keys and values of every layer factorised apart, each group of KV heads by itself (a block
// of B), nothing merged. Prefill attends through the factorisation, so every token is one pair of
// latents.
#include <algorithm>

#include "convert/latent/group_fit.h"
#include "convert/latent/group_forms.h"
#include "convert/latent/group_svd.h"
#include "convert/latent/latent_conversion.h"
#include "convert/latent/latent_plan.h"
#include "convert/methods/methods.h"
#include "convert/served_kinds.h"
#include "core/error.h"

namespace kvc {
namespace {

void apply_palu_preset(ConvertSettings& settings) {
  settings.own<LatentSettings>().factor = Factor::kWhitened;
  settings.own<RankSettings>().allocation = RankAllocation::kFisher;
}

void fix_palu(ConvertSettings& settings) {
  LatentSettings& own = settings.own<LatentSettings>();
  KVC_CHECK_USAGE(own.factor != Factor::kJoint,
                  "--factor joint: --method palu factorises keys and values apart; use whitened or "
                  "plain");
  own.merge = MergeRule::kNone;
  own.granularity = Granularity::kToken;
  own.unmerged = UnmergedChoice::kLatent;
  leave_no_exact_tokens(settings);
  settings.prefill = PrefillMode::kTruncated;
  fix_latent_settings(settings);
}

std::int64_t heads_per_group(const ModelConfig& config, const ConvertSettings& settings) {
  const std::int64_t given = settings.own<LatentSettings>().heads_per_group;
  const std::int64_t heads = given == 0 ? config.num_kv_heads : given;
  KVC_CHECK(heads <= config.num_kv_heads && config.num_kv_heads % heads == 0,
            "--head-group {}: the model's {} KV heads cannot be split into groups of it; use a "
            "divisor of {}",
            heads, config.num_kv_heads, config.num_kv_heads);
  return heads;
}

// Ranks of all key and value projections [2 * num_layers], per head group.
std::vector<std::int64_t> head_group_ranks(const PlanRequest& request) {
  const ModelConfig& config = request.config;
  const ConvertSettings& settings = request.settings;
  const std::int64_t width = heads_per_group(config, settings) * config.head_dim;
  const std::int64_t multiple = std::min(rank_multiple(config, settings), width);
  const std::int64_t rank =
      round_rank(settings.own<LatentSettings>().rank * static_cast<double>(width), multiple, width);
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(2 * config.num_layers), rank);
  if (settings.own<RankSettings>().allocation == RankAllocation::kFisher &&
      request.fisher_scores != nullptr) {
    const std::vector<std::int64_t> caps(ranks.size(), width);
    const auto total = rank * static_cast<std::int64_t>(ranks.size());
    ranks = allocate_ranks(*request.fisher_scores, total, caps, multiple);
  }
  return ranks;
}

std::vector<LatentGroup> plan_palu_groups(const PlanRequest& request) {
  const ModelConfig& config = request.config;
  const std::vector<std::int64_t> ranks = head_group_ranks(request);
  const std::int64_t num_head_groups =
      config.num_kv_heads / heads_per_group(config, request.settings);
  std::vector<LatentGroup> groups = group_layers(config, 1);
  for (std::size_t layer = 0; layer < groups.size(); ++layer) {
    LatentGroup& group = groups[layer];
    group.split_kv = true;
    group.key_rank = num_head_groups * ranks[2 * layer];
    group.value_rank = num_head_groups * ranks[2 * layer + 1];
    group.rank = group.key_rank + group.value_rank;
  }
  return groups;
}

// One projection: A of its head groups one below the other, B block-diagonal.
struct SplitFactors {
  at::Tensor latent_proj, reconstruct_proj;
  std::vector<double> singular_values;
  double kept = 0, total = 0;  // eigenvalue sums
  double optimum_error = 0;    // the worst head group's
};

SplitFactors factorize_heads(const at::Tensor& weight, const at::Tensor& metric,
                             std::int64_t num_head_groups, std::int64_t rank, at::Device device) {
  SplitFactors split;
  std::vector<at::Tensor> latents, blocks;
  for (const at::Tensor& rows : weight.chunk(num_head_groups, 0)) {
    const GroupFactorization factors =
        factorize_group(rows, metric, rank / num_head_groups, device);
    latents.push_back(factors.latent_proj);
    blocks.push_back(factors.reconstruct_proj);
    const double* s = factors.singular_values.const_data_ptr<double>();
    split.singular_values.insert(split.singular_values.end(), s, s + factors.rank());
    const double kept = factors.singular_values.square().sum().item<double>();
    split.kept += kept;
    split.total += kept / factors.energy_kept;
    split.optimum_error = std::max(split.optimum_error, factors.optimum_error);
  }
  split.latent_proj = at::cat(latents);
  split.reconstruct_proj = at::block_diag(blocks);
  return split;
}

void finish(GroupResult& result, const SplitFactors& key, const SplitFactors& value) {
  const auto emit = [&](const char* name, const at::Tensor& tensor) {
    result.tensors.emplace_back(name, tensor.to(at::kFloat).contiguous());
  };
  emit("key.latent_proj", key.latent_proj);
  emit("key.reconstruct_proj", key.reconstruct_proj);
  emit("value.latent_proj", value.latent_proj);
  emit("value.reconstruct_proj", value.reconstruct_proj);
  GroupReport& report = result.report;
  report.rank = key.latent_proj.size(0) + value.latent_proj.size(0);
  report.energy_kept = (key.kept + value.kept) / (key.total + value.total);
  report.optimum_error = std::max(key.optimum_error, value.optimum_error);
  report.singular_values = key.singular_values;
  report.singular_values.insert(report.singular_values.end(), value.singular_values.begin(),
                                value.singular_values.end());
}

struct LayerFactors {
  SplitFactors key, value;
};

LayerFactors factorize_layer(const GroupJob& job) {
  const at::Tensor metric = load_metric(job);
  const std::int64_t num_head_groups =
      job.conversion.config.num_kv_heads /
      heads_per_group(job.conversion.config, job.conversion.settings);
  const auto factorize = [&](Projection projection, std::int64_t rank) {
    return factorize_heads(load_projection(job, job.group.first_layer, projection), metric,
                           num_head_groups, rank, job.conversion.device);
  };
  return {factorize(Projection::kKey, job.group.key_rank),
          factorize(Projection::kValue, job.group.value_rank)};
}

GroupResult convert_group(GroupJob& job, const LayerFactors& factors) {
  const auto& [key, value] = factors;
  job.group.key_rank = key.latent_proj.size(0);
  job.group.value_rank = value.latent_proj.size(0);
  job.group.rank = job.group.key_rank + job.group.value_rank;

  GroupResult result;
  finish(result, key, value);
  ErrorSum key_error, value_error;
  const auto reconstruct = [&](std::size_t part, const at::Tensor& hidden) {
    return at::mm(at::mm(hidden, result.tensors[part].second.to(hidden.device()).t()),
                  result.tensors[part + 1].second.to(hidden.device()).t());
  };
  FormSample sample;
  job.stream.advance(1, [&](const LayerActivations& activations) {
    const at::Tensor hidden = activations.hidden.to(at::kFloat);
    const KeysValues exact = bias_free(activations);
    sample.add(hidden, exact, 0);
    key_error.add(exact.key, reconstruct(0, hidden));
    value_error.add(exact.value, reconstruct(2, hidden));
  });
  choose_split_forms(sample, result.tensors);
  result.report.key_error = key_error.relative();
  result.report.value_error = value_error.relative();
  return result;
}

KvPlan plan_palu(const PlanRequest& request) { return make_latent_plan(request, plan_palu_groups); }

void convert_palu(ConversionJob& job) {
  std::vector<LayerFactors> layers(job.result.plan.groups.size());
  const auto factors = [&](const GroupJob& group) -> LayerFactors& {
    return layers[static_cast<std::size_t>(group.index)];
  };
  convert_latent_groups(job,
                        {{[&](const GroupJob& group) { factors(group) = factorize_layer(group); }},
                         [&](GroupJob& group) {
                           const LayerFactors own = std::move(factors(group));
                           return convert_group(group, own);
                         }});
}

void fill_palu_table(PlanTable& table, const PlanRequest& request) {
  add_latent_rows(table, request);
  if (!table.plan.groups.empty()) {
    const LatentGroup& group = table.plan.groups.front();
    const std::int64_t kv_dim = request.config.kv_dim();
    table.notes.push_back(
        fmt::format("latents of {} + {} channels replace {} + {} of keys and values in every layer",
                    group.key_rank, group.value_rank, kv_dim, kv_dim));
  }
}

}  // namespace

const Method kPalu = {.name = "palu",
                      .options = {rank_options, latent_options},
                      .apply_paper_preset = apply_palu_preset,
                      .fix_settings = fix_palu,
                      .make_plan = plan_palu,
                      .convert = convert_palu,
                      .fill_table = fill_palu_table,
                      .factor_needs = latent_needs,
                      .rank = latent_rank,
                      .served = &kServedLatents};

}  // namespace kvc
