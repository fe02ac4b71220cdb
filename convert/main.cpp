#include "convert/command_line.h"

int main(int argc, char** argv) {
  return kvc::run_command(argc, argv,
                          "Rewrites a HuggingFace checkpoint so that its KV cache is smaller, and "
                          "measures what that costs.",
                          kvc::declare_convert_options);
}
