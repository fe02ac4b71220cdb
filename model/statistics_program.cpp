#include "model/statistics_program.h"

#include <ATen/Parallel.h>

#include <memory>

#include "core/command.h"
#include "core/error.h"
#include "core/output.h"
#include "core/progress.h"
#include "model/cache_plan.h"
#include "model/checkpoint_config.h"
#include "model/token_input.h"

namespace kvc {
namespace {

struct Request {
  std::filesystem::path checkpoint, out;
  TokenInput input;
  std::vector<std::filesystem::path> add;
  bool force = false;
};

void declare(CLI::App& app, const StatisticsProgram& program, Request& request) {
  app.add_option("checkpoint", request.checkpoint, "HuggingFace directory");
  app.add_option("--out", request.out, program.artifact + " to write")->required();
  app.add_option("--tokens", request.input.tokens, "tokens.h5 with the calibration tokens");
  app.add_option("--calibration", request.input.texts,
                 "Calibration text: .txt, .jsonl or tokens.h5; default: the built-in text");
  app.add_option("--num-sequences", request.input.text.num_sequences,
                 "Sequences cut from the text, at most; 0: all")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--seq-len", request.input.text.seq_len, "Tokens per sequence")
      ->check(CLI::PositiveNumber);
  app.add_option("--add", request.add, "Files of earlier runs to sum, instead of computing one");
}

void check(const Request& request) {
  const bool has_tokens = !request.input.tokens.empty(), has_texts = !request.input.texts.empty();
  KVC_CHECK_USAGE(!has_tokens || !has_texts, "--tokens and --calibration exclude each other");
  KVC_CHECK_USAGE(request.add.empty() || (!has_tokens && !has_texts),
                  "--add takes no tokens: it sums files that exist");
  KVC_CHECK_USAGE(!request.checkpoint.empty() || !request.add.empty(), "CHECKPOINT is required");
}

void run(const StatisticsProgram& program, const Request& request) {
  check(request);
  check_output(request.out, request.force);
  if (!request.add.empty()) {
    program.add(request.add, request.out, request.force);
    return;
  }
  log_debug(fmt::format("{} threads", at::get_num_threads()));
  const Checkpoint checkpoint = Checkpoint::open(request.checkpoint);
  const ModelConfig config = read_model_config(checkpoint);
  require_key_value_projections(config, request.checkpoint.string());
  program.compute(checkpoint, load_calibration_tokens(request.input, checkpoint, config.vocab_size),
                  request.out, request.force);
}

}  // namespace

int run_statistics_program(int argc, char** argv, const StatisticsProgram& program) {
  return run_command(argc, argv, program.description,
                     [&program](CLI::App& app, CommonOptions& common) -> Action {
                       auto request = std::make_shared<Request>();
                       declare(app, program, *request);
                       return [&program, request, &common] {
                         require_cpu(common);
                         request->force = common.force;
                         request->input.text.seed = common.seed;
                         run(program, *request);
                         if (common.json) {
                           fmt::print("{}", dump_json(program.summary(request->out)));
                         }
                       };
                     });
}

}  // namespace kvc
