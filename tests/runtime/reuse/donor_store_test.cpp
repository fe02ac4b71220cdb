#include "runtime/reuse/donor_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <thread>

#include "core/checksum.h"
#include "tests/runtime/reuse/donor_fixture.h"
#include "tests/testing/temporary_directory.h"

namespace kvc {
namespace {

namespace fs = std::filesystem;
using testing::entries;
using testing::first_ids;
using testing::Ids;
using testing::kLarge;
using testing::prompt_of;
using testing::Quiet;
using testing::random_normal;
using testing::small_format;
using testing::TemporaryDirectory;

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

TEST(DonorStore, FilesThatAreNoEntriesStay) {
  const TemporaryDirectory directory;
  DonorStore(directory.path(), small_format(), kLarge).store(prompt_of(1));
  const fs::path entry = entries(directory.path()).at(0);
  EXPECT_EQ(fs::status(entry).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  const auto bytes = static_cast<std::int64_t>(fs::file_size(entry));
  for (const char* name : {"model.safetensors", "download.partial"}) {
    std::ofstream(directory / name) << std::string(static_cast<std::size_t>(2 * bytes), 'x');
  }
  std::ofstream(directory / (std::string(32, 'a') + ".partial")) << "left by a process that ended";
  DonorStore(directory.path(), small_format(), bytes + bytes / 2).store(prompt_of(2));
  EXPECT_FALSE(fs::exists(entry));
  EXPECT_TRUE(fs::exists(directory / "model.safetensors"));
  EXPECT_TRUE(fs::exists(directory / "download.partial"));
  EXPECT_FALSE(fs::exists(directory / (std::string(32, 'a') + ".partial")));
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

}  // namespace
}  // namespace kvc
