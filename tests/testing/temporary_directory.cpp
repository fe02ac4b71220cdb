#include "tests/testing/temporary_directory.h"

#include <cstdlib>
#include <string>
#include <system_error>

#include "core/error.h"

namespace kvc::testing {

TemporaryDirectory::TemporaryDirectory() {
  std::string path = (std::filesystem::temp_directory_path() / "kvc-test-XXXXXX").string();
  KVC_CHECK(::mkdtemp(path.data()) != nullptr, "{}: cannot create a temporary directory", path);
  path_ = path;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace kvc::testing
