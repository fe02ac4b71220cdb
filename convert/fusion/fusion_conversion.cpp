#include "convert/fusion/fusion_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "convert/fusion/distillation.h"
#include "convert/fusion/fusion_fit.h"
#include "core/error.h"
#include "core/progress.h"

namespace kvc {
namespace {

struct LayerFit {
  FusionFit key, value;
};

std::vector<int> searched_sources(const ConversionJob& job, int layer) {
  return readable_sources(job.config, layer,
                          storage_layers(job.config, job.settings.own<FusionSettings>()));
}

// Layers that the fit of each layer may read. [num_layers]
std::vector<std::vector<int>> sources_of_fits(const ConversionJob& job) {
  std::vector<std::vector<int>> sources(job.result.plan.layers.size());
  for (const FusedLayer& layer : job.result.plan.fused) {
    std::vector<int>& own = sources[static_cast<std::size_t>(layer.layer)];
    if (job.settings.own<FusionSettings>().sources == FusionSources::kSearch) {
      own = searched_sources(job, layer.layer);
      continue;
    }
    own = layer.key_sources;
    own.insert(own.end(), layer.value_sources.begin(), layer.value_sources.end());
  }
  return sources;
}

ProductScope scope_of(const FusionSettings& settings) {
  return settings.form == FusionForm::kFull      ? ProductScope::kMatrices
         : settings.head_map == HeadMap::kSearch ? ProductScope::kAllHeads
                                                 : ProductScope::kSameHead;
}

FusionFit fit_part(const ConversionJob& job, const FusionMoments& moments, FusionWeights weights,
                   KvPart part, const FusedLayer& layer) {
  const FusionSettings& settings = job.settings.own<FusionSettings>();
  const std::vector<int>& sources = part == KvPart::kKey ? layer.key_sources : layer.value_sources;
  if (weights == FusionWeights::kOnes) {
    return fit_ones(moments, part, layer.layer, sources);
  }
  if (settings.form == FusionForm::kFull) {
    return fit_matrices(moments, part, layer.layer, sources);
  }
  if (settings.sources == FusionSources::kSearch) {
    return search_sources(moments, part, layer.layer, searched_sources(job, layer.layer),
                          settings.form, settings.head_map);
  }
  return fit_vectors(moments, part, layer.layer, sources, settings.form, settings.head_map);
}

std::vector<int> head_list(const FusionFit& fit, HeadMap head_map) {
  if (head_map == HeadMap::kSame || !fit.heads.defined()) {
    return {};
  }
  const at::Tensor heads = fit.heads.to(at::kInt).contiguous();
  const int* first = heads.const_data_ptr<int>();
  return {first, first + heads.numel()};
}

std::string fit_table(const std::vector<FusedReport>& fits) {
  std::string table;
  for (const FusedReport& fit : fits) {
    table += fmt::format("{}layer {}: keys {:.3f}, values {:.3f}", table.empty() ? "" : "; ",
                         fit.layer, fit.key_r2, fit.value_r2);
  }
  return table;
}

}  // namespace

void check_fits(const std::vector<FusedReport>& fits, const ConvertSettings& chosen) {
  const FusionSettings& settings = chosen.own<FusionSettings>();
  std::int64_t below = 0;
  for (const FusedReport& fit : fits) {
    below += std::min(fit.key_r2, fit.value_r2) < settings.min_r2 ? 1 : 0;
  }
  const char* why = settings.form == FusionForm::kFull
                        ? "Use a smaller share of fused layers (--storage-layers)"
                        : "Factors per channel rarely fit a pretrained model, because its layers "
                          "do not match channel by channel; FusedKV models are trained from "
                          "scratch. Use --fusion matrices (kvrun runs them, engines do not), "
                          "--distill-steps to train the factors";
  if (below == 0 || chosen.any_fit || settings.mixed || settings.distill.steps > 0) {
    return;
  }
  throw RefusedError(fmt::format(
      "--method {}: {} of {} fused layers fit their sources badly: R^2 on the calibration "
      "text is below --min-r2 {:g} ({}). {}, --mixed to leave such layers plain, another "
      "method (--method coded), or --force to convert anyway",
      chosen.method, below, fits.size(), settings.min_r2, fit_table(fits), why));
}

namespace {

void keep_fit(ConversionJob& job, FusedLayer& layer, const LayerFit& fit) {
  layer.key_sources = fit.key.sources;
  layer.value_sources = fit.value.sources;
  layer.key_heads = head_list(fit.key, job.settings.own<FusionSettings>().head_map);
  layer.value_heads = head_list(fit.value, job.settings.own<FusionSettings>().head_map);
}

void drop_layers(ConversionJob& job) {
  const FusionSettings& settings = job.settings.own<FusionSettings>();
  std::vector<FusedLayer> kept;
  for (std::size_t i = 0; i < job.result.plan.fused.size(); ++i) {
    FusedReport& fit = job.result.fused[i];
    fit.stays_plain = settings.mixed && std::min(fit.key_r2, fit.value_r2) < settings.min_r2;
    if (fit.stays_plain) {
      job.result.plan.layers[static_cast<std::size_t>(fit.layer)] = KvSource::kPlain;
      log_info(fmt::format("layer {} stays plain: R^2 of keys {:.3f}, of values {:.3f}", fit.layer,
                           fit.key_r2, fit.value_r2));
    } else {
      kept.push_back(std::move(job.result.plan.fused[i]));
    }
  }
  job.result.plan.fused = std::move(kept);
  if (!job.result.plan.fused.empty()) {
    return;
  }
  throw RefusedError(fmt::format(
      "--method {}: no layer fits its sources with an R^2 of --min-r2 {:g}, so all would "
      "stay plain ({}). Use --fusion matrices or another method (--method commonkv)",
      job.settings.method, settings.min_r2, fit_table(job.result.fused)));
}

Fusion as_fusion(const FusionFit& fit, const FusedLayer& layer, KvPart part,
                 const std::vector<int>& heads) {
  const bool by_form = part == KvPart::kKey || layer.form == FusionForm::kFull;
  return {.form = by_form ? layer.form : FusionForm::kChannel,
          .weight = fit.weight.to(at::kFloat).contiguous(),
          .heads = heads.empty() ? at::Tensor() : fit.heads};
}

at::Tensor as_stored(const Fusion& fusion, const std::vector<std::int64_t>& shape) {
  return fusion.weight.detach().reshape(shape).contiguous();
}

}  // namespace

void convert_fused_layers(ConversionJob& job, FusionWeights weights) {
  const FusionMoments moments = measure_fusion_moments(
      job, sources_of_fits(job), scope_of(job.settings.own<FusionSettings>()));
  std::map<int, LayerFit> fits;
  for (FusedLayer& layer : job.result.plan.fused) {
    const LayerFit fit{fit_part(job, moments, weights, KvPart::kKey, layer),
                       fit_part(job, moments, weights, KvPart::kValue, layer)};
    job.result.fused.push_back(
        {.layer = layer.layer, .key_r2 = fit.key.r2, .value_r2 = fit.value.r2});
    fits[layer.layer] = fit;
  }
  check_fits(job.result.fused, job.settings);
  for (FusedLayer& layer : job.result.plan.fused) {
    keep_fit(job, layer, fits.at(layer.layer));
  }
  drop_layers(job);
  FusedFactorMap factors;
  for (const FusedLayer& layer : job.result.plan.fused) {
    const LayerFit& fit = fits.at(layer.layer);
    factors[layer.layer] = {as_fusion(fit.key, layer, KvPart::kKey, layer.key_heads),
                            as_fusion(fit.value, layer, KvPart::kValue, layer.value_heads)};
  }
  if (job.settings.own<FusionSettings>().distill.steps > 0) {
    job.result.distillation = distill(job, factors);
  }
  for (const FusedLayer& layer : job.result.plan.fused) {
    const FusedWeights& pair = factors.at(layer.layer);
    job.factors.add(fmt::format("kvconvert.fused.{}.", layer.layer),
                    {{"key", as_stored(pair.key, fused_shape(job.result.plan, layer, true))},
                     {"value", as_stored(pair.value, fused_shape(job.result.plan, layer, false))}});
  }
}

}  // namespace kvc
