#include "tests/testing/zoo.h"

#include <fmt/format.h>

#include <algorithm>

#include "tests/testing/test_tensors.h"

namespace kvc::testing {
namespace {

namespace fs = std::filesystem;

constexpr int kPrompts = 2;

std::vector<std::int64_t> read_ids(const fs::path& file, const std::string& name) {
  const at::Tensor ids = read_tensor(file, name);
  const auto* first = ids.const_data_ptr<std::int64_t>();
  return {first, first + ids.numel()};
}

}  // namespace

fs::path zoo_directory() { return fs::path(KVC_TEST_DATA) / "zoo"; }

std::vector<std::string> zoo_names() {
  std::vector<std::string> names;
  std::error_code missing;  // leaves the list empty
  for (const fs::directory_entry& entry : fs::directory_iterator(zoo_directory(), missing)) {
    if (entry.is_directory()) {
      names.push_back(entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

ZooCase load_zoo_case(const std::string& name) {
  ZooCase zoo_case;
  zoo_case.directory = zoo_directory() / name;
  const fs::path golden = zoo_directory() / (name + ".safetensors");
  zoo_case.by_length = read_ids(golden, "by_length").at(0) != 0;
  for (int i = 0; i < kPrompts; ++i) {
    const std::string suffix = fmt::format(".{}", i);
    zoo_case.prompts.push_back({read_ids(golden, "ids" + suffix),
                                read_tensor(golden, "logits" + suffix),
                                read_ids(golden, "tokens" + suffix)});
  }
  return zoo_case;
}

}  // namespace kvc::testing
