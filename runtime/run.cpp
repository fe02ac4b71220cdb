#include "runtime/run.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>

#include "core/error.h"
#include "core/output.h"
#include "core/progress.h"
#include "core/safetensors.h"
#include "runtime/chat.h"
#include "runtime/prompts.h"
#include "runtime/run_report.h"
#include "runtime/text_stream.h"

namespace kvc {
namespace {

void print(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

// The memory of one pass's activations serves the next pass, instead of going back to the system.
void keep_freed_memory() {
#ifdef __GLIBC__
  constexpr int kBytes = 256 << 20;
  mallopt(M_MMAP_THRESHOLD, kBytes / 8);
  mallopt(M_TRIM_THRESHOLD, kBytes);
#endif
}

void check_tokens(const char* flag, std::int64_t tokens, std::int64_t least) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;  // sums and bytes of these fit in 64 bits
  KVC_CHECK_USAGE(tokens >= least && tokens <= kMost, "{} {}: expected {} to {}", flag, tokens,
                  least, kMost);
}

void check(const RunOptions& options) {
  KVC_CHECK_USAGE(options.policy.empty(),
                  "--policy {}: token policies are not available yet; what a conversion merges is "
                  "part of the checkpoint",
                  options.policy);
  KVC_CHECK_USAGE(options.memory.empty(),
                  "--memory {}: a memory budget is not available yet; choose --kept-ratio when "
                  "converting",
                  options.memory);
  check_tokens("--page-tokens", options.engine.page_tokens, 0);
  check_tokens("--max-new-tokens", options.generate.max_new_tokens, 0);
  check_tokens("--prefill-tokens", options.generate.prefill_tokens, 0);
  kvc::check(options.generate.sampling);
  KVC_CHECK_USAGE(options.chat || (options.system.empty() && options.chat_template.empty() &&
                                   options.chat_arguments.empty()),
                  "--system, --chat-template and --chat-arguments need --chat");
}

void print_ids(const RunOptions& options) {
  const Tokenizer tokenizer = Tokenizer::load(options.model);
  print(Json(tokenizer.encode(read_prompt_text(options.tokenize))).dump() + "\n");
}

void warn_about_length(const Engine& engine, const Prompts& prompts, const RunOptions& options) {
  for (const auto& ids : prompts.ids) {
    const std::int64_t total =
        static_cast<std::int64_t>(ids.size()) + options.generate.max_new_tokens;
    if (total > engine.config().max_position_embeddings) {
      log_warning(
          fmt::format("{} tokens may exceed the model's {} positions; text beyond them is "
                      "unreliable",
                      total, engine.config().max_position_embeddings));
      return;
    }
  }
}

void write_logits(OutputFile& file, const Prompts& prompts, const GenerateResult& result) {
  std::vector<TensorSource> sources;
  for (std::size_t i = 0; i < result.sequences.size(); ++i) {
    const at::Tensor logits = result.sequences[i].prompt_logits.contiguous();
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

void warm_up(const Engine& engine, const Prompts& prompts, GenerateOptions options) {
  constexpr std::int64_t kWarmUpTokens = 4;
  options.max_new_tokens = std::min(options.max_new_tokens, kWarmUpTokens);
  options.all_logits = false;
  generate(engine, prompts.ids, options);
}

// Text as it appears, of a single sequence.
TokenVisitor streaming_visitor(const RunOptions& options, const Prompts& prompts,
                               std::optional<TextStream>& stream) {
  if (options.json || prompts.is_batch || !prompts.tokenizer) {
    return {};
  }
  stream.emplace(*prompts.tokenizer, prompts.ids.front());
  return [&stream](std::size_t, std::int64_t token) { print(stream->push(token)); };
}

// A batch, and ids without a tokenizer, are printed when they are complete: one line per sequence.
void print_sequences(const Prompts& prompts, const GenerateResult& result) {
  for (std::size_t i = 0; i < result.sequences.size(); ++i) {
    const std::vector<std::int64_t>& tokens = result.sequences[i].tokens;
    print(prompts.tokenizer
              ? Json(continuation_text(*prompts.tokenizer, prompts.ids[i], tokens)).dump()
              : Json(tokens).dump());
    print("\n");
  }
}

}  // namespace

void run(const RunOptions& options) {
  check(options);
  if (!options.tokenize.empty()) {
    return print_ids(options);
  }
  if (options.threads > 0) {
    at::set_num_threads(options.threads);
  }
  keep_freed_memory();
  if (options.chat) {
    return chat(options);
  }
  std::optional<OutputFile> logits;  // opened before the work, so that a refusal comes at once
  if (!options.logits.empty()) {
    check_apart(options.logits, options.model);
    logits.emplace(options.logits, options.force);
  }
  const Prompts prompts = read_prompts(options);
  const auto start = std::chrono::steady_clock::now();
  const Engine engine = Engine::load(options.model, options.engine);
  const double load_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  warn_about_length(engine, prompts, options);
  GenerateOptions generate_options = options.generate;
  generate_options.all_logits = logits.has_value();
  if (!options.ignore_eos) {
    generate_options.stop_ids = stop_ids(options.model, engine.config());
  }
  if (options.warm_up) {
    warm_up(engine, prompts, generate_options);
  }
  std::optional<TextStream> stream;
  const TokenVisitor visit = streaming_visitor(options, prompts, stream);
  const GenerateResult result = generate(engine, prompts.ids, generate_options, visit);
  if (logits) {
    write_logits(*logits, prompts, result);
  }
  if (options.json) {
    print(run_json(engine, prompts, result, load_seconds).dump() + "\n");
  } else if (stream) {
    print(stream->finish() + (options.generate.max_new_tokens > 0 ? "\n" : ""));
  } else {
    print_sequences(prompts, result);
  }
  if (options.stats) {
    fmt::print(stderr, "{}\n", run_statistics(engine, result, load_seconds));
  }
}

}  // namespace kvc
