#include "core/process.h"
#include "validate/command_line.h"

int main(int argc, char** argv) {
  kvc::restart_with_short_waits(argv);
  return kvc::run_command(
      argc, argv,
      "Measures what a conversion costs: perplexity, KL divergence and agreement "
      "of the candidate with the original on the same text.",
      kvc::declare_validate_options);
}
