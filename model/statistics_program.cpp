#include "model/statistics_program.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "core/command.h"
#include "core/error.h"
#include "core/output.h"
#include "core/progress.h"
#include "model/cache_plan.h"
#include "model/config.h"
#include "model/token_input.h"

namespace kvc {
namespace {

struct Request {
  std::filesystem::path checkpoint, out;
  TokenInput input;
  std::vector<std::string> calibration;
  std::int64_t seq_len = 0;  // 0: TextOptions' default, or the model's context if that is shorter
  std::vector<std::filesystem::path> add;
  bool force = false;
  std::string device;
};

void declare(CLI::App& app, const StatisticsProgram& program, Request& request) {
  app.add_option("checkpoint", request.checkpoint, "HuggingFace directory");
  app.add_option("--out", request.out, program.artifact + " to write")->required();
  app.add_option("--tokens", request.input.tokens, "tokens.h5 with the calibration tokens");
  app.add_option("--calibration", request.calibration,
                 "Calibration text: builtin (default), .txt, .jsonl or tokens.h5");
  app.add_option("--num-sequences", request.input.text.num_sequences,
                 "Largest number of sequences taken from the text; 0: all")
      ->check(at_least(0));
  app.add_option("--seq-len", request.seq_len,
                 "Tokens per sequence (default: 512, or the model's context if that is shorter)")
      ->check(at_least(1));
  app.add_option("--add", request.add, "Sum these files of earlier runs instead of computing one");
}

// What says how statistics are taken goes with none of the ways to take over what exists.
void exclude_settings(CLI::App& app) {
  CLI::Option *tokens = app.get_option("--tokens"), *add = app.get_option("--add");
  for (const char* name : {"--num-sequences", "--seq-len"}) {
    app.get_option(name)->excludes(tokens)->excludes(add);
  }
  for (const char* name : {"--group", "--sink", "--attention"}) {
    if (CLI::Option* option = app.get_option_no_throw(name)) {
      option->excludes(add);
    }
  }
}

void check(const CLI::App& app, const Request& request) {
  const bool has_tokens = !request.input.tokens.empty(), has_texts = !request.calibration.empty();
  KVC_CHECK_USAGE(!has_tokens || !has_texts, "--tokens and --calibration exclude each other");
  KVC_CHECK_USAGE(request.add.empty() || (!has_tokens && !has_texts),
                  "--add takes no tokens: it sums files that exist");
  KVC_CHECK_USAGE(request.add.empty() || request.checkpoint.empty(),
                  "--add takes no checkpoint: it sums files that exist; leave {} out",
                  request.checkpoint.string());
  if (request.checkpoint.empty() && request.add.empty()) {
    fail_missing(app, "checkpoint");
  }
}

// Nothing that is read is replaced, with --force neither.
void check_apart_from_inputs(const StatisticsProgram& program, const Request& request) {
  std::vector<std::filesystem::path> inputs = request.input.texts.files;
  if (program.inputs) {
    const std::vector<std::filesystem::path> own = program.inputs();
    inputs.insert(inputs.end(), own.begin(), own.end());
  }
  inputs.insert(inputs.end(), request.add.begin(), request.add.end());
  for (const std::filesystem::path& input : {request.checkpoint, request.input.tokens}) {
    if (!input.empty()) {
      inputs.push_back(input);
    }
  }
  for (const std::filesystem::path& input : inputs) {
    check_apart(request.out, input);
  }
}

// The model was not made for longer sequences; what it does with them says nothing about it.
void check_lengths(const TokenSet& tokens, const ModelConfig& config, const Request& request) {
  for (const auto& row : tokens.sequences) {
    KVC_CHECK(
        static_cast<std::int64_t>(row.size()) <= config.max_position_embeddings,
        "{}: the calibration tokens hold a sequence of {}, the model's context is {}; {}",
        request.checkpoint.string(), row.size(), config.max_position_embeddings,
        request.input.tokens.empty()
            ? "give a smaller --seq-len"
            : fmt::format(
                  "{} is of a model with a longer one; give this model's tokens, or --calibration",
                  request.input.tokens.string()));
  }
}

void run(const CLI::App& app, const StatisticsProgram& program, const Request& request) {
  check(app, request);
  const ComputePlace place = statistics_place(request.device);
  check_output(request.out, request.force);
  check_apart_from_inputs(program, request);
  if (!request.add.empty()) {
    program.add(request.add, request.out, request.force);
    return;
  }
  log_debug(fmt::format("{} threads", at::get_num_threads()));
  const Checkpoint checkpoint = Checkpoint::open(request.checkpoint);
  const ModelConfig config = read_model_config(checkpoint);
  if (!program.takes_own_latents || !program.takes_own_latents()) {
    require_key_value_projections(config, request.checkpoint.string());
  }
  TokenInput input = request.input;
  input.text.seq_len = request.seq_len > 0
                           ? request.seq_len
                           : std::min(input.text.seq_len, config.max_position_embeddings);
  const TokenSet tokens = load_calibration_tokens(input, checkpoint, config.vocab_size);
  check_lengths(tokens, config, request);
  program.compute(checkpoint, tokens, request.out, request.force, place);
}

}  // namespace

int run_statistics_program(int argc, char** argv, const StatisticsProgram& program) {
  return run_command(argc, argv, program.description,
                     [&program](CLI::App& app, CommonOptions& common) -> Action {
                       auto request = std::make_shared<Request>();
                       declare(app, program, *request);
                       if (program.declare) {
                         program.declare(app, common);
                       }
                       exclude_settings(app);
                       return [&app, &program, request, &common] {
                         if (program.check) {
                           program.check(common);
                         }
                         request->device = common.device;
                         request->force = common.force;
                         request->input.text.seed = common.seed;
                         request->input.texts = parse_calibration_sources(request->calibration);
                         run(app, program, *request);
                         if (common.json) {
                           fmt::print("{}", dump_json(program.summary(request->out)));
                         }
                       };
                     });
}

}  // namespace kvc
