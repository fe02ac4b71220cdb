#include <fmt/format.h>

#include <memory>

#include "calibrate/calibrate.h"
#include "calibrate/calibrate_command.h"
#include "core/command.h"

int main(int argc, char** argv) {
  return kvc::run_command(
      argc, argv,
      "Sums statistics of a checkpoint's projection inputs, keys and values over calibration text.",
      [](CLI::App& app, kvc::CommonOptions& common) -> kvc::Action {
        auto command = std::make_shared<kvc::CalibrateCommand>();
        app.add_option("checkpoint", command->checkpoint, "HuggingFace directory");
        app.add_option("--out", command->out, "calibration.h5 to write")->required();
        app.add_option("--tokens", command->input.tokens, "tokens.h5 with the calibration tokens");
        app.add_option("--calibration", command->input.texts,
                       "Calibration text: .txt, .jsonl or tokens.h5; default: the built-in text");
        app.add_option("--num-sequences", command->input.text.num_sequences,
                       "Sequences cut from the text, at most; 0: all")
            ->check(CLI::NonNegativeNumber);
        app.add_option("--seq-len", command->input.text.seq_len, "Tokens per sequence")
            ->check(CLI::PositiveNumber);
        app.add_option("--add", command->add, "Calibrations to sum, instead of calibrating");
        return [command, &common] {
          kvc::require_cpu(common);
          command->force = common.force;
          command->input.text.seed = common.seed;
          kvc::run_calibrate(*command);
          if (common.json) {
            fmt::print("{}", kvc::dump_json(kvc::calibration_summary(command->out)));
          }
        };
      });
}
