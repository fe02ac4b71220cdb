#include <fmt/format.h>

#include <memory>

#include "core/command.h"
#include "fisher/fisher.h"
#include "fisher/fisher_command.h"

int main(int argc, char** argv) {
  return kvc::run_command(
      argc, argv,
      "Computes the diagonal Fisher information of a checkpoint's key and value projections.",
      [](CLI::App& app, kvc::CommonOptions& common) -> kvc::Action {
        auto command = std::make_shared<kvc::FisherCommand>();
        app.add_option("checkpoint", command->checkpoint, "HuggingFace directory");
        app.add_option("--out", command->out, "fisher.h5 to write")->required();
        app.add_option("--tokens", command->input.tokens, "tokens.h5 with the calibration tokens");
        app.add_option("--calibration", command->input.texts,
                       "Calibration text: .txt, .jsonl or tokens.h5; default: the built-in text");
        app.add_option("--num-sequences", command->input.text.num_sequences,
                       "Sequences cut from the text, at most; 0: all")
            ->check(CLI::NonNegativeNumber);
        app.add_option("--seq-len", command->input.text.seq_len, "Tokens per sequence")
            ->check(CLI::PositiveNumber);
        app.add_option("--add", command->add, "Fisher files to sum, instead of computing one");
        return [command, &common] {
          kvc::require_cpu(common);
          command->force = common.force;
          command->input.text.seed = common.seed;
          kvc::run_fisher(*command);
          if (common.json) {
            fmt::print("{}", kvc::dump_json(kvc::fisher_summary(command->out)));
          }
        };
      });
}
