#include "validate/command_line.h"

int main(int argc, char** argv) {
  return kvc::run_command(argc, argv,
                          "Compares a candidate with the original on the same text: perplexity, KL "
                          "divergence, agreement and bytes of the cache.",
                          kvc::declare_validate_options);
}
