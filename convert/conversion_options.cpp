#include "convert/conversion_options.h"

#include <algorithm>
#include <utility>

#include "convert/coded/coded_settings.h"
#include "convert/given_options.h"
#include "convert/latent/latent_settings.h"
#include "convert/methods/methods.h"
#include "convert/principal/principal_plan.h"
#include "core/error.h"
#include "export/factor_file.h"

namespace kvc {
namespace {

// Hands an option of settings to CLI11, which assigns what is given in the order of declaration.
struct Declare {
  CLI::App& app;
  const Option& option;

  void operator()(bool* value) const { app.add_flag(option.flag, *value, option.help); }
  // A wrong word in a flag is an error of usage, whatever it is in a file. An empty one leaves the default.
  void operator()(const Word& word) const {
    const auto set = [set_word = word.set, flag = option.flag](const std::string& text) {
      try {
        if (!text.empty()) {
          set_word(text);
        }
      } catch (const UsageError&) {
        throw;
      } catch (const Error& error) {
        fail_usage("{}: {}", flag, error.what());
      }
    };
    app.add_option_function<std::string>(option.flag, set, option.help);
  }
  template <typename Value>
  void operator()(Value* value) const {
    app.add_option(option.flag, *value, option.help);
  }
};

void declare_settings(CLI::App& app, ConvertSettings& settings) {
  const auto declare = [&app](const Option& option) {
    std::visit(Declare{app, option}, option.value);
    return app.get_option(option.name());
  };
  const Options common = common_options(settings);
  for (const Option& option : common.rows()) {
    declare(option);
    if (option.flag == "--method") {  // whose preset the options declared below override
      app.add_option_function<std::string>(
          "--preset", [&settings](const std::string& name) { apply_preset(settings, name); },
          "paper: the method as its paper describes it; other flags override it");
    }
  }
  for (const Options& own : own_options(settings)) {
    for (const Option& option : own.rows()) {
      declare(option)->group(own.heading);
    }
  }
}

// What of the model's own is chosen for it. A preset chooses exact tokens by itself, and so do some engines.
OpenSettings open_settings(const CLI::App& app, const PipelineOptions& options) {
  const auto open = [&app](const char* flag) { return app.count(flag) == 0; };
  const bool own = open("--preset"), tokens = own && !prescribes_tokens(options.engine);
  return {.kept_ratio = open("--kept-ratio"),
          .rank = own && open("--rank"),
          .sink = tokens && open("--sink"),
          .window = tokens && open("--window"),
          .block = tokens && open("--block")};
}

void declare_pipeline(CLI::App& app, PipelineOptions& options, ConversionWords& words) {
  app.add_option("checkpoint", options.checkpoint, "HuggingFace directory");
  app.add_option(
      "--out", options.out,
      "Output directory (default: <checkpoint's name>-<method> in the current directory)");
  app.add_option(
         "--for", words.engine,
         "Engine that will run the result: kvrun, transformers or vllm. With the last two the "
         "method is coded unless --method is given, and coded reads prompts through codes")
      ->capture_default_str();
  app.add_option("--export", words.format,
                 "factored, folded, both, or mla: DeepSeek-V2's architecture, at a loss of quality")
      ->capture_default_str();
  app.add_option("--mla-allowed", options.mla_allowed,
                 "mla: by how much the KL divergence may exceed a coded conversion's at the same "
                 "--kept-ratio, in nats a token; above that, nothing is written")
      ->capture_default_str()
      ->check(at_least(0));
  app.add_option("--factor-dtype", options.factor_dtype,
                 "Dtype of the written factors: auto (the smallest that is accurate enough), "
                 "float32, bfloat16, float16 or int8")
      ->capture_default_str();
  app.add_option("--calibration", words.calibration,
                 "Calibration text: self (sampled from the model), builtin, .txt, .jsonl or "
                 "tokens.h5 (default: builtin; coded: self and builtin)");
  app.add_option(
         "--num-sequences", options.effort.num_sequences,
         "Calibration sequences (default: 64; coded: 10, or 40 with --thorough or on a GPU)")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30));
  app.add_option("--seq-len", options.effort.seq_len,
                 "Tokens per sequence (default: 512; coded: 1024)")
      ->check(CLI::Range(std::int64_t{2}, std::int64_t{1} << 30));
  app.add_flag("--thorough", options.effort.thorough,
               "coded: calibrate on four times as much text (implied by --num-sequences, "
               "--seq-len, --metric and --device cuda)");
  app.add_option("--validation-text", options.validation_text,
                 "Evaluation text (default: built in)");
  app.add_option(
      "--work", options.work,
      "Directory of finished stages, from which an interrupted run resumes (default: .<out>.work)");
  app.add_flag("--plan", options.plan_only,
               "Print what each group of layers costs and saves, from config.json alone, and stop");
  app.add_flag("--validate,!--no-validate", options.validate,
               "Measure the loss of quality after converting (default)");
  app.add_flag(
      "--by-part", options.by_part,
      "Also measure what each group, layer or pair costs alone, with all other layers plain");
}

// What only methods with latents know, beside --prefill truncated.
std::string first_of_latents(const CLI::App& app, ConvertSettings& settings) {
  const std::string own = first_given(app, {latent_options(settings), rank_options(settings)});
  if (!own.empty()) {
    return own;
  }
  for (const char* flag : {"--block", "--preset"}) {
    if (app.count(flag) != 0) {
      return flag;
    }
  }
  return "";
}

// Options of other methods are refused, not left without an effect.
void check_known(const CLI::App& app, const Method& method, ConvertSettings& settings) {
  for (const Method& other : methods()) {
    for (const auto kind : other.options) {
      const std::string flag = first_given(app, {kind(settings)});
      KVC_CHECK_USAGE(flag.empty() || takes(method, kind),
                      "{}: does not apply to the method {}; leave it out, or pass {} as --method",
                      flag, method.name,
                      method_names([kind](const Method& known) { return takes(known, kind); }));
    }
  }
}

// Likewise values that the method replaces by its own.
void check_taken(const CLI::App& app, const Method& method, ConvertSettings settings) {
  const Json asked = to_json(settings);
  method.fix_settings(settings);
  const Json taken = to_json(settings);
  std::vector<Options> kinds = {common_options(settings)};
  for (const auto kind : method.options) {
    kinds.push_back(kind(settings));
  }
  for (const Options& options : kinds) {
    for (const Option& option : options.rows()) {
      if (option.key.empty() || app.count(option.name()) == 0) {
        continue;
      }
      const Json::json_pointer place("/" + option.key);
      const auto text = [&place](const Json& recorded) {
        const Json& value = recorded.at(place);
        return value.is_string() ? value.get<std::string>() : value.dump();
      };
      KVC_CHECK_USAGE(
          text(asked) == text(taken),
          "{} {}: the method {} takes {} here; leave it out, or choose another --method",
          option.name(), text(asked), method.name, text(taken));
    }
  }
}

bool compresses_later(const Method& method) {
  return method.exact_tokens != nullptr && !takes(method, coded_options);
}

// The method when --method is not given (design contract): coded when nothing of latents is asked for, but
// a target or something of coded caches is.
void choose_method(const CLI::App& app, PipelineOptions& options) {
  ConvertSettings& settings = options.settings;
  const std::string latent = first_of_latents(app, settings);
  const std::string coded = first_given(app, {coded_options(settings)});
  if (app.count("--method") == 0 && latent.empty() && settings.prefill != PrefillMode::kTruncated &&
      (!coded.empty() || settings.prefill == PrefillMode::kCoded || app.count("--metric") != 0 ||
       (app.count("--kept-ratio") != 0 && app.count("--group") == 0))) {
    settings.method = "coded";
  }
  const Method& method = find_method(settings.method);
  KVC_CHECK_USAGE(
      app.count("--rank") == 0 || !takes(method, principal_options),
      "--rank: does not apply to --method {}; use --key-rank and --value-rank, or --kept-ratio",
      settings.method);
  KVC_CHECK_USAGE(
      app.count("--kv-dtype") == 0 || takes(method, principal_options),
      "--kv-dtype: does not apply to the method {}, whose conversions run in any cache dtype; "
      "leave it out here, or pass {} as --method",
      settings.method,
      method_names([](const Method& known) { return takes(known, principal_options); }));
  check_known(app, method, settings);
  const bool is_coded = takes(method, coded_options);
  const std::string& foreign = is_coded ? latent : coded;
  KVC_CHECK_USAGE(foreign.empty(),
                  "{}: does not apply to the method {}; leave it out, or pass {} as --method",
                  foreign, settings.method, is_coded ? method_names(compresses_later) : "coded");
  check_taken(app, method, settings);
  options.effort.thorough = options.effort.thorough || app.count("--metric") != 0;
  if (app.count("--rank") == 0 && method.rank != nullptr && method.least_kept_ratio == nullptr) {
    method.rank(settings) = settings.kept_ratio;  // nothing else decides what is kept
  }
}

// The layout has a cache of its own, so that methods' options say nothing about it.
void suit_mla(const CLI::App& app, PipelineOptions& options) {
  if (options.format != ExportFormat::kMla) {
    KVC_CHECK_USAGE(app.count("--mla-allowed") == 0,
                    "--mla-allowed: belongs to --export mla; leave it out, or add --export mla");
    return;
  }
  const std::string own = first_given(app, own_options(options.settings));
  for (const std::string& flag : {own, std::string("--method"), std::string("--preset"),
                                  std::string("--factor-dtype"), std::string("--by-part")}) {
    KVC_CHECK_USAGE(flag.empty() || app.count(flag) == 0,
                    "{}: does not apply to --export mla; leave one out", flag);
  }
  options.settings.method = "coded";  // what the result is judged beside
}

}  // namespace

ConversionOptions::ConversionOptions(CLI::App& app) : app_(app) {
  declare_pipeline(app, options_, words_);
  declare_settings(app, options_.settings);
}

PipelineOptions ConversionOptions::resolve(const CommonOptions& common) {
  if (options_.checkpoint.empty()) {
    fail_missing(app_, "checkpoint");
  }
  options_.command = command_text(app_);
  options_.engine = parse_serving_engine(words_.engine);
  options_.format = parse_export_format(words_.format);
  check_factor_dtype(options_.factor_dtype);
  KVC_CHECK_USAGE(
      !options_.by_part || (options_.validate && options_.format != ExportFormat::kFolded),
      "--by-part: measures parts of a cache, found {}; leave one out",
      options_.validate ? "--export folded" : "--no-validate");
  KVC_CHECK_USAGE(
      !options_.plan_only || options_.factor_dtype == "auto",
      "--factor-dtype {}: --plan estimates factors in the types that auto chooses; leave one "
      "out",
      options_.factor_dtype);
  KVC_CHECK_USAGE(
      options_.engine == ServingEngine::kKvrun || options_.format == ExportFormat::kFactored,
      "--for {}: reads factored exports, found --export; leave --export out", words_.engine);
  suit_engine(
      options_.engine, [this](const char* flag) { return app_.count(flag) != 0; },
      options_.settings);
  suit_mla(app_, options_);
  choose_method(app_, options_);
  options_.open = open_settings(app_, options_);
  options_.calibration = parse_calibration_sources(words_.calibration);
  options_.settings.any_fit = common.force;
  options_.settings.seed = common.seed;
  options_.settings.device = common.device == "auto" ? "cpu" : common.device;
  options_.force = common.force;
  options_.json = common.json;
  return options_;
}

}  // namespace kvc
