#include "fisher/fisher.h"
#include "model/statistics_program.h"

int main(int argc, char** argv) {
  return kvc::run_statistics_program(
      argc, argv,
      {.description =
           "Computes the diagonal Fisher information of a checkpoint's key and value projections.",
       .artifact = "fisher.h5",
       .compute = [](const auto&... arguments) { kvc::fisher(arguments...); },
       .add = kvc::add_fishers,
       .summary = kvc::fisher_summary});
}
