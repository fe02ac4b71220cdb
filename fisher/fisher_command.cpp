#include "fisher/fisher_command.h"

#include <ATen/Parallel.h>

#include "core/error.h"
#include "core/output.h"
#include "core/progress.h"
#include "fisher/fisher.h"
#include "model/config.h"

namespace kvc {

void run_fisher(const FisherCommand& command) {
  KVC_CHECK_USAGE(command.input.tokens.empty() || command.input.texts.empty(),
                  "--tokens and --calibration exclude each other");
  KVC_CHECK_USAGE(
      command.add.empty() || (command.input.tokens.empty() && command.input.texts.empty()),
      "--add takes no tokens: it sums files that exist");
  KVC_CHECK_USAGE(!command.checkpoint.empty() || !command.add.empty(), "CHECKPOINT is required");
  check_output(command.out, command.force);
  if (!command.add.empty()) {
    add_fishers(command.add, command.out, command.force);
    return;
  }
  log_debug(fmt::format("{} threads", at::get_num_threads()));
  const Checkpoint checkpoint = Checkpoint::open(command.checkpoint);
  const ModelConfig config =
      parse_model_config(checkpoint.config(), (checkpoint.directory() / "config.json").string());
  fisher(checkpoint, load_calibration_tokens(command.input, checkpoint, config.vocab_size),
         command.out, command.force);
}

}  // namespace kvc
