// Tasks of the bundled tokenizers.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "validate/tasks/task_kinds.h"

namespace kvc::testing {

inline Tokenizer bundled_tokenizer(const std::string& model = "reference-llama") {
  return Tokenizer::load(std::filesystem::path(KVC_TEST_DATA) / model);
}

// The one task of this name, without files.
inline Task built_in_task(const std::string& name) {
  return choose_tasks({name}, read_task_inputs({})).at(0);
}

inline const std::vector<std::string>& built_in_tasks() {
  static const std::vector<std::string> names = {"passkey",
                                                 "recall",
                                                 "copying",
                                                 "niah_single_1",
                                                 "niah_single_2",
                                                 "niah_single_3",
                                                 "niah_multikey_1",
                                                 "niah_multikey_2",
                                                 "niah_multikey_3",
                                                 "niah_multivalue",
                                                 "niah_multiquery",
                                                 "vt",
                                                 "cwe",
                                                 "fwe"};
  return names;
}

}  // namespace kvc::testing
