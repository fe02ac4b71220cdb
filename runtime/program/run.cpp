#include "runtime/program/run.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>

#include "core/error.h"
#include "core/interrupt.h"
#include "core/output.h"
#include "core/progress.h"
#include "core/safetensors.h"
#include "runtime/block_cache.h"
#include "runtime/program/chat.h"
#include "runtime/program/memory_plan.h"
#include "runtime/program/prompts.h"
#include "runtime/program/run_report.h"
#include "runtime/program/runner.h"
#include "runtime/text_stream.h"

namespace kvc {
namespace {

void check_tokens(const char* flag, std::int64_t tokens, std::int64_t least) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;  // sums and bytes of these fit in 64 bits
  KVC_CHECK_USAGE(tokens >= least && tokens <= kMost, "{} {}: expected {} to {}", flag, tokens,
                  least, kMost);
}

void check_beams(const RunOptions& options) {
  constexpr std::int64_t kMostBeams = 256;
  const std::int64_t beams = options.generate.num_beams;
  KVC_CHECK_USAGE(beams >= 1 && beams <= kMostBeams, "--beams {}: expected 1 to {}", beams,
                  kMostBeams);
  KVC_CHECK_USAGE(beams == 1 || options.generate.num_samples <= beams,
                  "--num-samples {}: more than the {} texts that --beams finds",
                  options.generate.num_samples, beams);
  const SamplingRequest& sampling = options.sampling;
  KVC_CHECK_USAGE(
      beams == 1 ||
          (!sampling.sample && sampling.temperature.value_or(0) == 0 &&
           sampling.repetition_penalty.value_or(1) == 1 && options.stop.empty() && !options.chat),
      "--beams cannot be combined with sampling, --repetition-penalty, --stop or --chat");
}

void check(const RunOptions& options) {
  KVC_CHECK_USAGE(options.reuse.empty() || !options.engine.reuse.donors.empty(),
                  "--reuse needs --donors DIR");
  KVC_CHECK_USAGE(options.logits.empty() || options.engine.reuse.donors.empty(),
                  "--logits requires prompts that are read in full; leave out --donors");
  check_tokens("--page-tokens", options.engine.page_tokens.value_or(1), 1);
  check_tokens("--max-new-tokens", options.generate.max_new_tokens, 0);
  check_tokens("--prefill-tokens", options.generate.prefill_tokens, 0);
  check_tokens("--prefill-chunk", options.engine.prefill_chunk, 0);
  constexpr std::int64_t kMostSamples = 1024;
  KVC_CHECK_USAGE(options.generate.num_samples >= 1 && options.generate.num_samples <= kMostSamples,
                  "--num-samples {}: expected 1 to {}", options.generate.num_samples, kMostSamples);
  check_beams(options);
  check_stop_strings(options.stop);
  KVC_CHECK_USAGE(options.chat || (options.system.empty() && options.chat_template.empty() &&
                                   options.chat_arguments.empty()),
                  "--system, --chat-template and --chat-arguments need --chat");
  KVC_CHECK_USAGE(
      !options.chat || !(options.plan || options.warm_up),
      "{} requires a text that is known beforehand, which --chat has not; leave one out",
      options.plan ? "--plan" : "--warm-up");
}

// Options that would have no effect.
void check_used(const RunOptions& options) {
  KVC_CHECK_USAGE(
      options.tokenize.empty() ||
          (options.prompt.empty() && options.prompt_file.empty() && options.ids.empty() &&
           !options.chat && !options.plan && options.logits.empty()),
      "--tokenize prints a text's ids and stops; leave out --prompt, --prompt-file, "
      "--ids, --chat, --plan and --logits");
  KVC_CHECK_USAGE(!options.plan || (options.logits.empty() && !options.warm_up),
                  "--plan generates nothing; leave out --logits and --warm-up");
  const SamplingRequest& sampling = options.sampling;
  KVC_CHECK_USAGE(sampling.sample || sampling.temperature.value_or(0) != 0 ||
                      !(sampling.top_k || sampling.top_p || sampling.min_p),
                  "--top-k, --top-p and --min-p choose among tokens that are drawn; add "
                  "--temperature or --sample");
}

void print_ids(const RunOptions& options) {
  const Tokenizer tokenizer = Tokenizer::load(options.model);
  print_now(Json(tokenizer.encode(read_prompt_text(options.tokenize))).dump() + "\n");
}

void write_logits(OutputFile& file, const Prompts& prompts, const GenerateResult& result) {
  std::vector<TensorSource> sources;
  const std::size_t samples = result.sequences.size() / prompts.ids.size();
  for (std::size_t i = 0; i < prompts.ids.size(); ++i) {
    const at::Tensor logits = result.sequences[i * samples].prompt_logits.contiguous();
    sources.push_back({.name = prompts.is_batch ? fmt::format("logits.{}", i) : "logits",
                       .dtype = Dtype::kF32,
                       .shape = logits.sizes().vec(),
                       .read = [logits] {
                         return std::span(static_cast<const std::byte*>(logits.const_data_ptr()),
                                          logits.nbytes());
                       }});
  }
  write_safetensors(file.path(), std::move(sources));
  file.commit();
}

void warm_up(const Runner& runner, const Prompts& prompts, GenerateOptions options) {
  constexpr std::int64_t kWarmUpTokens = 4;
  options.max_new_tokens = std::min(options.max_new_tokens, kWarmUpTokens);
  options.all_logits = false;
  runner.generate(prompts.ids, options, {});
}

// The texts of a run's sequences; empty where there is no tokenizer.
std::vector<Continuation> continuations(const RunOptions& options, const Prompts& prompts) {
  KVC_CHECK(prompts.tokenizer || options.stop.empty(),
            "{}: --stop requires a tokenizer, and there is none", options.model.string());
  std::vector<Continuation> texts;
  for (std::size_t i = 0; prompts.tokenizer && i < prompts.ids.size(); ++i) {
    for (std::int64_t sample = 0; sample < options.generate.num_samples; ++sample) {
      texts.emplace_back(*prompts.tokenizer, prompts.ids[i], options.stop);
    }
  }
  return texts;
}

// Prints a single sequence's text as it appears; ends sequences at stop strings.
TokenVisitor visitor(std::vector<Continuation>& texts, bool streams) {
  if (texts.empty()) {
    return {};
  }
  return [&texts, streams](std::size_t sequence, std::int64_t token) {
    const std::string piece = texts[sequence].push(token);
    if (streams) {
      print_now(piece);
    }
    return !texts[sequence].stopped();
  };
}

void visit_all(const GenerateResult& result, const TokenVisitor& visit) {
  for (std::size_t i = 0; i < result.sequences.size(); ++i) {
    for (const std::int64_t token : result.sequences[i].tokens) {
      visit(i, token);
    }
  }
}

// Several sequences, and ids without a tokenizer, are printed when they are complete: one line each.
void print_sequences(const RunReport& report) {
  for (std::size_t i = 0; i < report.result.sequences.size(); ++i) {
    print_now(report.texts.empty() ? Json(report.result.sequences[i].tokens).dump()
                                   : Json(report.texts[i]).dump());
    print_now("\n");
  }
}

void generate_and_print(const Runner& runner, const RunOptions& options, const Prompts& prompts,
                        double load_seconds, OutputFile* logits) {
  std::vector<Continuation> texts = continuations(options, prompts);
  const bool is_list = prompts.is_batch || options.generate.num_samples > 1;
  const bool streams = !options.json && !is_list && !texts.empty();
  const TokenVisitor visit = visitor(texts, streams);
  const GenerateResult result = runner.generate(prompts.ids, options.generate, visit);
  if (options.generate.num_beams > 1 && visit) {  // known only now
    visit_all(result, visit);
  }
  const RunModel model = runner.describe(result);
  RunReport report{model, result, {}, is_list, load_seconds};
  for (Continuation& text : texts) {
    const std::string rest = text.finish();
    if (streams) {
      print_now(rest + (options.generate.max_new_tokens > 0 ? "\n" : ""));
    }
    report.texts.push_back(text.text());
  }
  if (logits != nullptr && !result.interrupted) {
    write_logits(*logits, prompts, result);
  }
  if (options.json) {
    print_now(run_json(report).dump() + "\n");
  } else if (!streams) {
    print_sequences(report);
  }
  if (options.stats) {
    fmt::print(stderr, "{}\n", run_statistics(report));
  }
  if (result.interrupted) {
    throw Interrupted();
  }
}

}  // namespace

void run(const RunOptions& given) {
  check(given);
  check_used(given);
  if (!given.tokenize.empty()) {
    return print_ids(given);
  }
  RunOptions options = given;
  parse_reuse(given.reuse, options.engine.reuse);
  KVC_CHECK_USAGE(
      !options.warm_up || options.engine.reuse.donors.empty() || !options.engine.reuse.store,
      "--warm-up with --donors: the run would reuse what the untimed one stored; leave "
      "one out, or add --reuse store=off");
  KVC_CHECK_USAGE(
      options.engine.reuse.donors.empty() || !options.engine.kv_dtype.starts_with("int") ||
          !(options.plan || options.engine.memory_bytes),
      "--kv-dtype {} with --donors: --plan and --memory do not count that a prompt's rows stay "
      "exact until all layers are read; leave them out, or --kv-dtype",
      options.engine.kv_dtype);
  options.generate.sampling = resolve(given.sampling, given.model);
  options.generate.stopped = is_interrupted;
  options.engine.time_parts = given.stats || given.json;
  if (options.plan) {
    return print_memory_plan(options);
  }
  if (options.threads > 0) {
    at::set_num_threads(options.threads);
  }
  options.generate.prompts_read = [] { BlockCache::of_process().release(); };
  BlockCache::of_process();
  if (options.chat) {
    return chat(options);
  }
  std::optional<OutputFile> logits;  // opened before the work, so that a refusal comes at once
  if (!options.logits.empty()) {
    for (const auto* input : {&options.model, &options.ids, &options.prompt_file}) {
      if (!input->empty()) {
        check_apart(options.logits, *input, "--logits");
      }
    }
    logits.emplace(options.logits, options.force);
    options.generate.all_logits = true;
  }
  const Prompts prompts = read_prompts(options);
  const auto start = std::chrono::steady_clock::now();
  const Runner runner = load_runner(options);
  const double load_seconds = seconds_since(start);
  for (const auto& ids : prompts.ids) {
    const std::int64_t total =
        static_cast<std::int64_t>(ids.size()) + options.generate.max_new_tokens;
    if (warn_about_length(total, runner.config.max_position_embeddings)) {
      break;
    }
  }
  if (!options.ignore_eos) {
    options.generate.stop_ids = stop_ids(options.model, runner.config);
  }
  if (options.warm_up) {
    warm_up(runner, prompts, options.generate);
  }
  generate_and_print(runner, options, prompts, load_seconds, logits ? &*logits : nullptr);
}

}  // namespace kvc
