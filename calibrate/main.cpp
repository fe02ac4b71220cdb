#include "calibrate/calibrate.h"
#include "model/statistics_program.h"

int main(int argc, char** argv) {
  return kvc::run_statistics_program(
      argc, argv,
      {.description =
           "Sums statistics of a checkpoint's projection inputs, keys and values over calibration "
           "text.",
       .artifact = "calibration.h5",
       .compute = [](const auto&... arguments) { kvc::calibrate(arguments...); },
       .add = kvc::add_calibrations,
       .summary = kvc::calibration_summary});
}
