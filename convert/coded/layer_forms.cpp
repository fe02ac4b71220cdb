#include "convert/coded/layer_forms.h"

#include <algorithm>
#include <vector>

#include "convert/coded/block_basis.h"
#include "convert/coded/block_fit.h"
#include "convert/coded/block_layout.h"
#include "convert/coded/coded_plan.h"
#include "convert/coded/coded_settings.h"
#include "convert/coded/form_choice.h"
#include "core/progress.h"

namespace kvc {
namespace {

// From the fastest on, without those that the layer or the number of rotary pairs does not allow.
std::vector<CodedForm> forms_of(const ModelConfig& config, int layer) {
  constexpr int kBlocks = 4;
  std::vector<CodedForm> forms;
  if (!config.depends_on_length(layer)) {
    forms.push_back({.keys = KeyTransform::kRotated});
  }
  forms.push_back({.keys = KeyTransform::kPairs});
  if (config.head_dim / 2 % kBlocks == 0 && config.head_dim / 2 > kBlocks) {
    forms.push_back({.keys = KeyTransform::kBlocks, .blocks = kBlocks});
  }
  forms.push_back({.keys = KeyTransform::kKeys});
  forms.push_back({.keys = KeyTransform::kFull});
  return forms;
}

FormOptions form_options(const ConversionJob& job, const LayerScopes& scopes, const LayerRun& run) {
  const RunStatistics statistics = read_run_statistics(job, run, *job.settings.cache_metric);
  FormOptions options;
  for (const CodedForm& form : forms_of(job.config, run.first_layer)) {
    FormOption& option = options.emplace_back();
    option.form = form;
    LayerScopes all = scopes;
    all.forms.assign(all.forms.size(), form);
    for (CodedBlock& block : blocks_in(block_layout(job.config, job.settings, all), run)) {
      check_calibration_tokens(statistics, block, job.config);
      const at::Tensor variances = block_basis(block_statistics(statistics, run, block, job.config),
                                               block, job.config, job.device)
                                       .variances.contiguous();
      const auto* of_block = variances.const_data_ptr<double>();
      option.variances.insert(option.variances.end(), of_block, of_block + variances.numel());
      block.coefficients[1] = num_channels(block, job.config);
      option.products =
          std::max(option.products, static_cast<double>(key_products(block, job.config)));
    }
  }
  return options;
}

}  // namespace

void choose_forms(ConversionJob& job) {
  LayerScopes scopes = choose_scopes(job.config, job.settings);
  std::vector<FormOptions> options;
  Progress progress("forms", job.config.num_layers);
  for (const LayerRun& run : layer_runs(job.config, 1)) {
    options.push_back(form_options(job, scopes, run));
    progress.advance();
  }
  const CodedSettings& own = job.settings.own<CodedSettings>();
  const auto bits =
      static_cast<double>(coded_bit_budget(job.config, job.settings, job.result.plan));
  const std::vector<std::size_t> choice =
      own.products > 0 ? share_products(options, bits, static_cast<double>(own.products))
                       : fastest_forms(options, bits);
  for (std::size_t layer = 0; layer < choice.size(); ++layer) {
    scopes.forms[layer] = options[layer][choice[layer]].form;
  }
  job.result.plan.coded = block_layout(job.config, job.settings, scopes);
}

}  // namespace kvc
