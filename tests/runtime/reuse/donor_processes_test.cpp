// Donor stores on disks that are full, and of processes that write at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <thread>

#include "core/error.h"
#include "tests/runtime/reuse/donor_fixture.h"
#include "tests/testing/temporary_directory.h"

namespace kvc {
namespace {

namespace fs = std::filesystem;
using testing::first_ids;
using testing::Ids;
using testing::kLarge;
using testing::prompt_of;
using testing::small_format;
using testing::TemporaryDirectory;

// While alive, files of this process end at `bytes`.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit = before_;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

 private:
  struct rlimit before_ {};
  void (*handler_)(int) = nullptr;
};

TEST(DonorStore, AFullDiskKeepsWhatThereWas) {
  const TemporaryDirectory directory;
  DonorStore store(directory.path(), small_format(), kLarge);
  store.store(prompt_of(1));
  for (const rlim_t bytes : {0, 100, 1000, 3000}) {
    const FileLimit limit(bytes);
    store.store(prompt_of(2));
  }
  EXPECT_EQ(first_ids(directory.path()), (Ids{1}));
  for (const auto& entry : fs::directory_iterator(directory.path())) {
    EXPECT_NE(entry.path().extension(), ".partial");
  }
  store.store(prompt_of(2));
  EXPECT_EQ(first_ids(directory.path()), (Ids{1, 2}));
}

TEST(DonorStore, AStoreThatCannotBeIsAnError) {
  const TemporaryDirectory directory;
  std::ofstream(directory / "file") << "x";
  EXPECT_THROW(DonorStore(directory / "file", small_format(), kLarge), Error);
  EXPECT_THROW(DonorStore(directory / "none" / "donors", small_format(), kLarge), Error);
}

// A process of its own that stores prompts until it has stored all, or is killed.
pid_t storing_process(const fs::path& directory, std::int64_t first_id) {
  const pid_t child = ::fork();
  if (child == 0) {
    DonorStore store(directory, small_format(), 30'000);
    for (std::int64_t i = 0; i < 60; ++i) {
      store.store(prompt_of((first_id + i) % 100, 10 + i % 7));
    }
    ::_exit(0);
  }
  return child;
}

TEST(DonorStore, ProcessesStoreAtOnceAndMayBeKilled) {
  const TemporaryDirectory directory;
  for (int round = 0; round < 6; ++round) {
    const pid_t left = storing_process(directory.path(), round);
    const pid_t right = storing_process(directory.path(), round + 3);
    for (int look = 0; look < 5; ++look) {
      first_ids(directory.path());  // expects all that it opens to be whole
      std::this_thread::sleep_for(std::chrono::milliseconds(1 + round * 3));
    }
    ::kill(left, SIGKILL);
    int status = 0;
    ::waitpid(left, &status, 0);
    if (round % 2 == 0) {
      ::kill(right, SIGKILL);
    }
    ::waitpid(right, &status, 0);
    EXPECT_TRUE(round % 2 == 0 || (WIFEXITED(status) && WEXITSTATUS(status) == 0));
  }
  DonorStore(directory.path(), small_format(), 30'000).store(prompt_of(77, 50));
  EXPECT_THAT(first_ids(directory.path()), ::testing::Contains(77));
  std::int64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(directory.path())) {
    EXPECT_NE(entry.path().extension(), ".partial");
    bytes += static_cast<std::int64_t>(entry.file_size());
  }
  EXPECT_LE(bytes, 30'000);
}

}  // namespace
}  // namespace kvc
