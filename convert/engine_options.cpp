#include "convert/engine_options.h"

#include "convert/coded/coded_settings.h"
#include "core/error.h"
#include "core/kv_plan_bytes.h"

namespace kvc {
namespace {

// UsageError if the flag was given with another number of tokens than the engine serves.
void check_tokens(const Given& given, const std::string& engine, const char* flag,
                  std::int64_t tokens, std::int64_t served) {
  KVC_CHECK_USAGE(!given(flag) || tokens == served,
                  "--for {}: keeps no tokens exact, found {} {}; leave {} out", engine, flag,
                  tokens, flag);
}

// Every token is a latent as soon as it was read.
void suit_latents(const Given& given, PipelineOptions& options) {
  ConvertSettings& settings = options.settings;
  const std::string engine = to_string(options.engine);
  check_tokens(given, engine, "--sink", settings.sink_tokens, 0);
  check_tokens(given, engine, "--window", settings.window_tokens, 0);
  check_tokens(given, engine, "--block", settings.block_tokens, 1);
  settings.sink_tokens = settings.window_tokens = 0;
  settings.block_tokens = 1;
}

}  // namespace

bool prescribes_tokens(const PipelineOptions& options) {
  return options.engine == ServingEngine::kVllm;
}

void suit_engine(const Given& given, PipelineOptions& options) {
  if (options.engine == ServingEngine::kKvrun) {
    return;
  }
  ConvertSettings& settings = options.settings;
  const std::string engine = to_string(options.engine);
  const bool latents = serves_latents(options.engine, settings.method);
  const bool fused = serves_fused(options.engine, settings.method);
  KVC_CHECK_USAGE(!given("--method") || latents || fused || settings.method == "coded",
                  "--for {}: requires --method coded, pca, xkv-static, palu, commonkv, fusedkv, "
                  "fusedkv-lite, yoco or cla, found {}; leave --method out, or leave --for out and "
                  "pass --export folded",
                  engine, settings.method);
  KVC_CHECK_USAGE(options.format == ExportFormat::kFactored,
                  "--for {}: reads factored exports, found --export; leave --export out", engine);
  if ((latents || fused) && given("--method")) {
    if (latents && prescribes_tokens(options)) {
      suit_latents(given, options);
    }
    return;
  }
  KVC_CHECK_USAGE(!given("--prefill") || settings.prefill == PrefillMode::kCoded,
                  "--for {}: reads prompts through codes, found --prefill {}; leave --prefill out",
                  engine, to_string(settings.prefill));
  check_tokens(given, engine, "--sink", settings.sink_tokens, 0);
  KVC_CHECK_USAGE(
      !given("--window") || settings.window_tokens % kQuantisedTokens == 0,
      "--for {}: keeps whole tiles of {} tokens exact, found --window {}; pass --window "
      "{}, or leave it out",
      engine, kQuantisedTokens, settings.window_tokens,
      settings.window_tokens / kQuantisedTokens * kQuantisedTokens);
  settings.method = "coded";
  settings.prefill = PrefillMode::kCoded;
  if (!prescribes_tokens(options)) {
    return;
  }
  // vLLM reserves exact tokens for as many sequences as it may run, so they are the user's choice.
  settings.sink_tokens = 0;
  settings.window_tokens = given("--window") ? settings.window_tokens : 0;
  if (!given("--head-bits")) {
    settings.own<CodedSettings>().head_bits = HeadBits::kEqual;
  }
}

}  // namespace kvc
