#include "convert/command_line.h"

#include <cstdio>
#include <memory>

#include "convert/coded/coded_options.h"
#include "convert/flag_words.h"
#include "convert/fusion/command_line.h"
#include "convert/method_support.h"
#include "convert/pipeline.h"
#include "core/error.h"

namespace kvc {
namespace {

// As given, or empty (convert/flag_words.h).
struct Words {
  std::string factor, merge, granularity, prefill, unmerged, rank_allocation, gauge, metric, later,
      solver, minicache, format = "factored";
  std::vector<std::string> calibration;
};

void apply(const Words& words, PipelineOptions& options) {
  ConvertSettings& settings = options.settings;
  parse_word("--factor", words.factor, parse_factor, settings.factor);
  parse_word("--metric", words.metric, parse_cache_metric, settings.cache_metric);
  parse_word("--merge", words.merge, parse_merge_rule, settings.merge);
  parse_word("--granularity", words.granularity, parse_granularity, settings.granularity);
  parse_word("--prefill", words.prefill, parse_prefill_mode, settings.prefill);
  parse_word("--unmerged", words.unmerged, parse_unmerged_choice, settings.unmerged);
  parse_word("--gauge", words.gauge, parse_gauge, settings.gauge);
  parse_word("--later", words.later, parse_later_tokens, settings.later);
  parse_word("--solver", words.solver, parse_basis_solver, settings.solver);
  parse_word("--minicache", words.minicache, parse_pair_retention, settings.pairing.retention);
  parse_word("--rank-alloc", words.rank_allocation, parse_rank_allocation,
             settings.rank_allocation);
  options.format = parse_export_format(words.format);
  options.calibration = parse_calibration_sources(words.calibration);
}

void declare_method(CLI::App& app, ConvertSettings& settings, Words& words) {
  app.add_option("--method", settings.method,
                 "commonkv, palu, coded, pca, xkv-static, xkv, minicache, fusedkv, fusedkv-lite, "
                 "yoco or cla (coded, if only --kept-ratio is given)")
      ->capture_default_str();
  // CLI11 assigns options in the order of their declaration: those below override the preset.
  app.add_option_function<std::string>(
      "--preset", [&settings](const std::string& name) { apply_preset(settings, name); },
      "paper: the method as its paper describes it; other flags override it");
  app.add_option("--group", settings.layers_per_group, "Adjacent layers compressed together")
      ->capture_default_str();
  app.add_option("--rank", settings.rank, "Width of the latent as a fraction of hidden_size")
      ->capture_default_str();
  app.add_option(
      "--rank-multiple", settings.rank_multiple,
      "Ranks are rounded down to a multiple of this (0: 32 from hidden_size 1024 on, else 4)");
  app.add_option("--rank-alloc", words.rank_allocation,
                 "Ranks of the groups: uniform (default), fisher or energy");
  app.add_option("--kept-ratio", settings.kept_ratio,
                 "Target: compressed / original KV bytes (default: 0.5, or the nearest possible)");
  app.add_option(
      "--factor", words.factor,
      "Factorisation: whitened (default), plain (weights alone) or joint (keys and values)");
  app.add_option(
      "--merge", words.merge,
      "How layers' latents merge: ls (least squares, default), fisher, mean, sensitivity or none");
  app.add_flag("--ls-fisher,!--no-ls-fisher", settings.ls_fisher_weights,
               "Weight least squares by Fisher information (default)");
  app.add_flag("--refit,!--no-refit", settings.refit,
               "Refit the reconstruction to the merged latents (default)");
  app.add_option("--gauge", words.gauge,
                 "Coordinates of latents: svd (default), or pivot (stores some key channels "
                 "verbatim; steps rebuild fewer)");
  app.add_option("--granularity", words.granularity,
                 "What merges at a time: token (default) or group");
  app.add_option("--prefill", words.prefill,
                 "Keys and values that prompts attend to: exact (default) or truncated, as in the "
                 "papers' code");
  app.add_option(
      "--unmerged", words.unmerged,
      "Unmerged tokens store plain KV, a latent per layer, or the smaller of both (auto, default)");
  app.add_option("--sink", settings.sink_tokens,
                 "First tokens that stay exact (default: by method and --context)");
  app.add_option("--window", settings.window_tokens,
                 "Last tokens that stay exact (default: by method and --context)");
  app.add_option("--block", settings.block_tokens,
                 "Generated tokens compressed at a time (default: by method and --context)");
  app.add_option("--head-group", settings.heads_per_group,
                 "palu: KV heads factorised together (0: all)");
  app.add_option("--context", settings.context,
                 "Tokens of the cache that is planned (0: the model's context, at most 8192)");
  app.add_option("--tokens-in-flight", settings.tokens_in_flight,
                 "Tokens that all requests hold together; the saving must exceed the factors there "
                 "(0: --context, at least 8192)");
}

// What of the model's own is chosen for it. A preset chooses exact tokens by itself.
OpenSettings open_settings(const CLI::App& app) {
  const auto open = [&app](const char* flag) { return app.count(flag) == 0; };
  const bool own = open("--preset");
  return {.kept_ratio = open("--kept-ratio"),
          .rank = own && open("--rank"),
          .sink = own && open("--sink"),
          .window = own && open("--window"),
          .block = own && open("--block")};
}

void declare_principal(CLI::App& app, ConvertSettings& settings, Words& words) {
  app.add_option("--metric", words.metric,
                 "coded, xkv-static, pca: how errors are weighted: fisher (default for coded), "
                 "attn, attn_fs or none (default for the others)");
  app.add_flag("--joint", settings.joint, "xkv: one latent for keys and values");
  app.add_option("--value-ratio", settings.value_ratio, "xkv: value directions per key direction")
      ->capture_default_str();
  app.add_option("--key-rank", settings.key_rank,
                 "xkv: key directions per layer (0: from --kept-ratio)");
  app.add_option("--value-rank", settings.value_rank,
                 "xkv: value directions per layer (0: from --kept-ratio)");
  app.add_option("--later", words.later,
                 "xkv: later turns: exact (default), project (on the first turn's directions) or "
                 "new-segment (their own)");
  app.add_option(
      "--recompress-every", settings.recompress_every,
      "xkv: compress generated tokens like a later turn, this many at a time (0: they stay exact)");
  app.add_option("--solver", words.solver,
                 "xkv: how directions are found: eigh (default) or subspace (iteration)");
  app.add_option("--kv-dtype", settings.kv_dtype,
                 "xkv: dtype of the cache that ranks are planned for; int8 gives twice the "
                 "directions (default: the checkpoint's)");
}

void declare_pairing(CLI::App& app, PairSettings& settings, Words& words) {
  app.add_option("--minicache", words.minicache,
                 "minicache: retain the tokens whose layers differ most (different, default) or "
                 "least (inverted)");
  app.add_option(
         "--minicache-position", settings.position,
         "minicache: shared direction between the lower layer's (0) and the upper one's (1)")
      ->capture_default_str();
  app.add_option("--minicache-retained", settings.retained,
                 "minicache: share of the range of angles that is retained; also the largest share "
                 "of tokens")
      ->capture_default_str();
}

void declare_pipeline(CLI::App& app, PipelineOptions& options, Words& words) {
  app.add_option("checkpoint", options.checkpoint, "HuggingFace directory");
  app.add_option("--out", options.out, "Output directory (default: <checkpoint>-<method>)");
  app.add_option("--export", words.format, "factored, folded or both")->capture_default_str();
  app.add_option("--factor-dtype", options.factor_dtype,
                 "Dtype of the written factors: auto (the smallest that is accurate enough), "
                 "float32, bfloat16 or float16")
      ->capture_default_str();
  app.add_option("--calibration", words.calibration,
                 "Calibration text: self (sampled from the model), builtin, .txt, .jsonl or "
                 "tokens.h5 (default: builtin; coded: self and builtin)");
  app.add_option(
         "--num-sequences", options.effort.num_sequences,
         "Calibration sequences (default: 64; coded: 10, or 40 with --thorough or on a GPU)")
      ->check(CLI::PositiveNumber);
  app.add_option("--seq-len", options.effort.seq_len,
                 "Tokens per sequence (default: 512; coded: 1024)")
      ->check(CLI::Range(std::int64_t{2}, std::int64_t{1} << 30));
  app.add_flag("--thorough", options.effort.thorough,
               "coded: calibrate on four times as much text (implied by --num-sequences, --seq-len "
               "and --metric)");
  app.add_option("--validation-text", options.validation_text,
                 "Evaluation text (default: built in)");
  app.add_option(
      "--work", options.work,
      "Directory of finished stages, from which an interrupted run resumes (default: .<out>.work)");
  app.add_flag("--plan", options.plan_only,
               "Print what each group of layers costs and saves, from config.json alone, and stop");
  app.add_flag("--validate,!--no-validate", options.validate,
               "Measure the loss of quality after converting (default)");
}

// Flags that only methods with latents know.
constexpr const char* kLatentFlags[] = {
    "--rank",      "--rank-multiple", "--rank-alloc", "--factor",      "--merge",
    "--ls-fisher", "--refit",         "--gauge",      "--granularity", "--prefill",
    "--unmerged",  "--block",         "--head-group", "--preset"};

template <typename Flags>
const char* first_given(const CLI::App& app, const Flags& flags) {
  for (const char* flag : flags) {
    if (app.count(flag) != 0) {
      return flag;
    }
  }
  return nullptr;
}

// The method when --method is not given (design contract): coded when nothing of latents is asked for, but
// a target or something of coded caches is.
void choose_method(const CLI::App& app, PipelineOptions& options) {
  const char* latent = first_given(app, kLatentFlags);
  const char* coded = first_given(app, coded_flags());
  std::string& method = options.settings.method;
  if (app.count("--method") == 0 && latent == nullptr &&
      (coded != nullptr || app.count("--metric") != 0 ||
       (app.count("--kept-ratio") != 0 && app.count("--group") == 0))) {
    method = "coded";
  }
  const bool principal = method == "xkv" || method == "xkv-static" || method == "pca";
  KVC_CHECK_USAGE(
      app.count("--rank") == 0 || !principal,
      "--rank: does not apply to --method {}; use --key-rank and --value-rank, or --kept-ratio",
      method);
  const char* foreign = method == "coded" ? latent : coded;
  KVC_CHECK_USAGE(foreign == nullptr,
                  "{}: does not apply to the method {}; leave it out, or pass {} as --method",
                  foreign == nullptr ? "" : foreign, method,
                  method == "coded" ? "commonkv or palu" : "coded");
  options.effort.thorough = options.effort.thorough || app.count("--metric") != 0;
  if (app.count("--rank") == 0 && method == "palu") {
    options.settings.rank = options.settings.kept_ratio;  // both projections of each layer alike
  }
}

}  // namespace

Action declare_convert_options(CLI::App& app, CommonOptions& common) {
  auto options = std::make_shared<PipelineOptions>();
  auto words = std::make_shared<Words>();
  declare_pipeline(app, *options, *words);
  declare_method(app, options->settings, *words);
  const auto apply_coded = declare_coded_options(app, options->settings.coded);
  const auto apply_fusion = declare_fusion_options(app, options->settings.fusion);
  declare_principal(app, options->settings, *words);
  declare_pairing(app, options->settings.pairing, *words);
  const auto list_models = std::make_shared<bool>(false);
  app.add_flag("--list-models", *list_models,
               "Print the model families that each method converts, and stop");
  return [options, words, apply_coded, apply_fusion, list_models, &app, &common] {
    if (*list_models) {
      std::fputs((common.json ? dump_json(support_json()) : support_text()).c_str(), stdout);
      return;
    }
    KVC_CHECK_USAGE(!options->checkpoint.empty(), "checkpoint is required; see kvconvert --help");
    choose_method(app, *options);
    options->open = open_settings(app);
    apply(*words, *options);
    apply_coded();
    apply_fusion();
    options->settings.fusion.any_fit = common.force;
    options->settings.seed = common.seed;
    options->settings.device = common.device == "auto" ? "cpu" : common.device;
    options->force = common.force;
    options->json = common.json;
    run_pipeline(*options);
  };
}

}  // namespace kvc
