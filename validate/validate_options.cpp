#include "validate/validate_options.h"

#include "core/error.h"

namespace kvc {
namespace {

Json paths_json(const std::vector<std::filesystem::path>& paths) {
  Json names = Json::array();
  for (const auto& path : paths) {
    names.push_back(path.string());
  }
  return names;
}

Json number_or_null(const std::optional<double>& value) {
  return value ? Json(*value) : Json(nullptr);
}

// Null without tasks.
Json task_options_json(const TaskOptions& options) {
  return options.names.empty() ? Json(nullptr)
                               : Json{{"names", options.names},
                                      {"lengths", options.lengths},
                                      {"num_samples", options.num_samples},
                                      {"texts", paths_json(options.texts)},
                                      {"questions_after", options.questions_after},
                                      {"chat", options.chat},
                                      {"results", options.results.string()},
                                      {"min_ratio", number_or_null(options.min_ratio)}};
}

}  // namespace

void check_options(const ValidateOptions& options) {
  KVC_CHECK_USAGE(options.num_sequences >= 1, "--num-sequences {}: must be at least 1",
                  options.num_sequences);
  KVC_CHECK_USAGE(options.seq_len == 0 || options.seq_len >= 4, "--seq-len {}: must be at least 4",
                  options.seq_len);
  KVC_CHECK_USAGE(options.block_tokens >= 0, "--block {}: must be at least 1, or 0 for halves",
                  options.block_tokens);
  KVC_CHECK_USAGE(!options.by_part || options.policy.kind == TokenPolicyKind::kFull,
                  "--by-part with --policy: a policy drops tokens of all layers; leave one out");
  KVC_CHECK_USAGE(options.num_recalls >= 0, "--recall {}: must not be negative",
                  options.num_recalls);
  KVC_CHECK_USAGE(options.max_kld.value_or(0) >= 0, "--max-kld {}: must be a number, at least 0",
                  *options.max_kld);
  KVC_CHECK_USAGE(options.max_ppl_ratio.value_or(1) > 0,
                  "--max-ppl-ratio {}: must be a number above 0", *options.max_ppl_ratio);
  KVC_CHECK_USAGE(options.min_same_top.value_or(0) >= 0 && options.min_same_top.value_or(0) <= 1,
                  "--min-same-top is a share between 0 and 1");
  KVC_CHECK_USAGE(options.tasks.min_ratio.value_or(0) >= 0,
                  "--min-task-ratio must be a number of 0 or more");
  KVC_CHECK_USAGE(!options.tasks.names.empty() ||
                      (options.tasks.lengths.empty() && options.tasks.texts.empty() &&
                       options.tasks.results.empty() && !options.tasks.questions_after &&
                       !options.tasks.chat && !options.tasks.min_ratio),
                  "options of tasks without a task; name some with --tasks");
}

Json options_json(const ValidateOptions& options) {
  return {{"reference", options.reference.string()},
          {"candidate", options.candidate.string()},
          {"texts", paths_json(options.texts)},
          {"num_sequences", options.num_sequences},
          {"seq_len", options.seq_len},
          {"dtype", options.dtype},
          {"kv_dtype", options.kv_dtype},
          {"policy", to_string(options.policy)},
          {"selective", options.selective ? Json(to_string(*options.selective)) : Json(nullptr)},
          {"block_tokens", options.block_tokens},
          {"by_part", options.by_part},
          {"num_recalls", options.num_recalls},
          {"tasks", task_options_json(options.tasks)},
          {"seed", options.seed},
          {"max_kld", number_or_null(options.max_kld)},
          {"max_ppl_ratio", number_or_null(options.max_ppl_ratio)},
          {"min_same_top", number_or_null(options.min_same_top)}};
}

}  // namespace kvc
