#include "runtime/reuse/donor_store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <thread>

#include "core/progress.h"
#include "runtime/reuse/checksum.h"
#include "tests/testing/temporary_directory.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

namespace fs = std::filesystem;
using testing::random_normal;
using testing::TemporaryDirectory;
using testing::tensors_identical;

constexpr std::int64_t kLarge = std::int64_t{1} << 40;

DonorFormat small_format(const std::string& binding = "a") {
  return {.binding = binding,
          .num_layers = 2,
          .num_kv_heads = 2,
          .head_dim = 4,
          .hidden_size = 8,
          .vocab_size = 100};
}

// Every number of it follows from the first id.
DonorPrompt prompt_of(std::int64_t first_id, std::int64_t num_tokens = 20) {
  DonorPrompt prompt;
  for (std::int64_t i = 0; i < num_tokens; ++i) {
    prompt.ids.push_back((first_id + i) % 100);
  }
  const auto seed = static_cast<std::uint64_t>(first_id) * 10;
  prompt.mean_embedding = random_normal({8}, seed);
  for (std::uint64_t layer = 0; layer < 2; ++layer) {
    prompt.key.push_back(random_normal({num_tokens, 2, 4}, seed + 1 + layer));
    prompt.value.push_back(random_normal({num_tokens, 2, 4}, seed + 3 + layer));
  }
  return prompt;
}

::testing::AssertionResult is_whole(const DonorPrompt& found) {
  const DonorPrompt expected = prompt_of(found.ids.at(0), found.num_tokens());
  if (found.ids != expected.ids) {
    return ::testing::AssertionFailure() << "other ids";
  }
  for (std::size_t layer = 0; layer < 2; ++layer) {
    for (const auto& [a, b] : {std::pair(found.key[layer], expected.key[layer]),
                               {found.value[layer], expected.value[layer]}}) {
      if (const auto same = tensors_identical(a, b); !same) {
        return same;
      }
    }
  }
  return ::testing::AssertionSuccess();
}

std::vector<fs::path> entries(const fs::path& directory) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.path().extension() == ".safetensors") {
      paths.push_back(entry.path());
    }
  }
  return paths;
}

// What a look-up in a new process finds: every donor that can be opened, each of which must be whole.
std::vector<std::int64_t> first_ids(const fs::path& directory,
                                    const DonorFormat& format = small_format()) {
  DonorStore store(directory, format, kLarge);
  std::vector<std::int64_t> ids;
  for (const auto& candidate : store.nearest(random_normal({8}, 1), 1000)) {
    if (const auto donor = store.open(candidate.name)) {
      EXPECT_TRUE(is_whole(donor->prompt()));
      ids.push_back(donor->prompt().ids.front());
    }
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

using Ids = std::vector<std::int64_t>;

// While alive, warnings are not printed.
struct Quiet {
  Quiet() { set_log_level(LogLevel::kError); }
  ~Quiet() { set_log_level(LogLevel::kInfo); }
};

void overwrite(const fs::path& path, std::int64_t offset, char byte) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(offset);
  file.put(byte);
}

char byte_at(const fs::path& path, std::int64_t offset) {
  std::ifstream file(path, std::ios::binary);
  file.seekg(offset);
  return static_cast<char>(file.get());
}

TEST(Checksum, ChangesWithEveryByteAndLength) {
  std::vector<std::byte> bytes(200);
  const std::uint64_t before = checksum_of(bytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      bytes[i] = static_cast<std::byte>(1 << bit);
      EXPECT_NE(checksum_of(bytes), before);
    }
    bytes[i] = std::byte{0};
    EXPECT_NE(checksum_of(std::span(bytes).first(i)), before);
  }
}

TEST(DonorStore, GivesBackWhatWasStoredNearestFirst) {
  const TemporaryDirectory directory;
  DonorStore store(directory / "donors", small_format(), kLarge);
  EXPECT_TRUE(store.nearest(random_normal({8}, 1), 4).empty());
  for (const std::int64_t id : {1, 2, 3}) {
    store.store(prompt_of(id));
    store.store(prompt_of(id));  // is there
  }
  EXPECT_EQ(entries(directory / "donors").size(), 3u);
  EXPECT_EQ(first_ids(directory / "donors"), (Ids{1, 2, 3}));
  const auto nearest = store.nearest(prompt_of(2).mean_embedding, 2);
  ASSERT_EQ(nearest.size(), 2u);
  EXPECT_EQ(nearest[0].head->ids, prompt_of(2).ids);
  EXPECT_EQ(fs::status(directory / "donors").permissions() & fs::perms::all, fs::perms::owner_all);
}

TEST(DonorStore, ForeignEntriesAreNotUsed) {
  const TemporaryDirectory directory;
  DonorStore(directory.path(), small_format("a"), kLarge).store(prompt_of(1));
  EXPECT_TRUE(first_ids(directory.path(), small_format("b")).empty());
  DonorStore(directory.path(), small_format("b"), kLarge).store(prompt_of(1));
  EXPECT_EQ(first_ids(directory.path(), small_format("b")), (Ids{1}));
  EXPECT_EQ(first_ids(directory.path(), small_format("a")), (Ids{1}));
}

TEST(DonorStore, AChangeOfAnyByteIsFound) {
  const Quiet quiet;
  const TemporaryDirectory directory;
  DonorStore(directory.path(), small_format(), kLarge).store(prompt_of(1));
  const fs::path file = entries(directory.path()).at(0);
  const auto size = static_cast<std::int64_t>(fs::file_size(file));
  const std::int64_t data_begin =
      8 + static_cast<std::int64_t>(SafetensorsFile::open(file).header().size());
  ASSERT_LT(data_begin, size / 2);
  for (std::int64_t offset = 0; offset < size; offset += 3) {
    const char before = byte_at(file, offset);
    overwrite(file, offset, static_cast<char>(before ^ 0x20));
    const auto found = first_ids(directory.path());  // expects what it finds to be whole
    EXPECT_TRUE(found.empty() || offset < data_begin) << "byte " << offset << " of " << size;
    overwrite(file, offset, before);
  }
  EXPECT_EQ(first_ids(directory.path()), (Ids{1}));
}

TEST(DonorStore, TruncatedEntriesAndOtherFilesArePassedOverOnce) {
  const TemporaryDirectory directory;
  DonorStore(directory.path(), small_format(), kLarge).store(prompt_of(1));
  const fs::path file = entries(directory.path()).at(0);
  const auto whole = fs::file_size(file);
  for (const double share : {0.0, 0.01, 0.3, 0.999}) {
    fs::resize_file(file, static_cast<std::uintmax_t>(static_cast<double>(whole) * share));
    EXPECT_TRUE(first_ids(directory.path()).empty()) << share;
  }
  std::ofstream(directory / "text.safetensors") << "no entry";
  ::testing::internal::CaptureStderr();
  DonorStore store(directory.path(), small_format(), kLarge);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(store.nearest(random_normal({8}, 1), 4).empty());
  }
  const std::string warnings = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(warnings.begin(), warnings.end(), '\n'), 2) << warnings;
  store.store(prompt_of(1));  // takes the damaged one's place
  EXPECT_EQ(first_ids(directory.path()), (Ids{1}));
}

TEST(DonorStore, ALimitRemovesTheLeastRecentlyUsed) {
  const TemporaryDirectory directory;
  DonorStore(directory.path(), small_format(), kLarge).store(prompt_of(1));
  const auto bytes = static_cast<std::int64_t>(fs::file_size(entries(directory.path()).at(0)));
  DonorStore store(directory.path(), small_format(), 4 * bytes);
  const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
  for (const std::int64_t id : {2, 3}) {
    pause();
    store.store(prompt_of(id));
  }
  pause();
  const auto first = store.nearest(prompt_of(1).mean_embedding, 1);
  EXPECT_TRUE(store.open(first.at(0).name));  // now the newest
  for (const std::int64_t id : {4, 5}) {
    pause();
    store.store(prompt_of(id));
  }
  const Ids left = first_ids(directory.path());
  EXPECT_THAT(left, ::testing::AllOf(::testing::Contains(1), ::testing::Contains(5),
                                     ::testing::Not(::testing::Contains(2))));
  store.store(prompt_of(6, 2000));  // above the limit
  EXPECT_EQ(first_ids(directory.path()), left);
}

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
