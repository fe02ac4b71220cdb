#include "core/hdf5.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hdf5.h>
#include <sys/resource.h>

#include <csignal>
#include <fstream>
#include <numeric>
#include <sstream>
#include <thread>

#include "core/error.h"
#include "core/hdf5_handle.h"
#include "tests/testing/error_of.h"

namespace kvc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Hdf5Test : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::path(::testing::TempDir()) /
                 ("kvc_hdf5_" + std::to_string(getpid()) + "_" +
                  ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::filesystem::path file(const std::string& name) const { return directory_ / name; }

 private:
  std::filesystem::path directory_;
};

std::string bytes_of(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

void write_bytes(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::vector<std::int64_t> counting(std::size_t count) {
  std::vector<std::int64_t> values(count);
  std::iota(values.begin(), values.end(), 0);
  return values;
}

void write_sample(const std::filesystem::path& path) {
  Hdf5Writer writer(path);
  writer.attribute("format", std::string("sample"));
  writer.attribute("empty", std::string());
  writer.dataset("/layers/3/gram", std::vector<double>{1, 2, 3, 4, 5, 6}, {2, 3},
                 {"row", "column"});
  writer.dataset("/layers/10/spectrum", std::vector<double>{1.5, -2.5}, {2});
  writer.dataset("/ids", counting(100'000), {100'000}, {"token"});
  writer.dataset("/nothing", std::vector<double>{}, {0, 4});
  writer.dataset("/options", "{\"text\": \"é\"}");
  writer.close();
}

TEST_F(Hdf5Test, ReadsBackWhatItWrote) {
  write_sample(file("a.h5"));
  const Hdf5Reader reader(file("a.h5"));
  EXPECT_EQ(reader.attribute("format"), "sample");
  EXPECT_EQ(reader.attribute("empty"), "");
  EXPECT_THAT(reader.doubles("/layers/3/gram", {2, 3}), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(reader.doubles("/layers/10/spectrum", {2}), ElementsAre(1.5, -2.5));
  EXPECT_EQ(reader.ints("/ids", {100'000}), counting(100'000));
  EXPECT_TRUE(reader.doubles("/nothing", {0, 4}).empty());
  EXPECT_EQ(reader.text("/options"), "{\"text\": \"é\"}");
  EXPECT_THAT(reader.shape("/layers/3/gram"), ElementsAre(2, 3));
  EXPECT_THAT(reader.children("/layers"), ElementsAre("10", "3"));
  EXPECT_TRUE(reader.contains("/layers/3"));
  EXPECT_FALSE(reader.contains("/layers/4"));
}

TEST_F(Hdf5Test, EqualContentsGiveEqualBytes) {
  write_sample(file("a.h5"));
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));  // object times count seconds
  write_sample(file("b.h5"));
  EXPECT_EQ(bytes_of(file("a.h5")), bytes_of(file("b.h5")));
}

TEST_F(Hdf5Test, LargeIntegerDatasetsAreCompressed) {
  write_sample(file("a.h5"));
  EXPECT_LT(std::filesystem::file_size(file("a.h5")), 400'000u);  // 800 000 bytes of ids
}

TEST_F(Hdf5Test, LabelsAreWhereTheDimensionScalesInterfaceLooks) {
  write_sample(file("a.h5"));
  const hid_t opened = H5Fopen(file("a.h5").c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  const hid_t attribute =
      H5Aopen_by_name(opened, "/layers/3/gram", "DIMENSION_LABELS", H5P_DEFAULT, H5P_DEFAULT);
  const hid_t type = H5Aget_type(attribute);
  char* labels[2] = {};
  ASSERT_GE(H5Aread(attribute, type, labels), 0);
  EXPECT_STREQ(labels[0], "row");
  EXPECT_STREQ(labels[1], "column");
  H5free_memory(labels[0]);
  H5free_memory(labels[1]);
  H5Tclose(type);
  H5Aclose(attribute);
  H5Fclose(opened);
}

TEST_F(Hdf5Test, RefusesWrongShapeTypeAndName) {
  write_sample(file("a.h5"));
  const Hdf5Reader reader(file("a.h5"));
  EXPECT_THAT(error_of([&] {
                reader.doubles("/layers/3/gram", {3, 2});
              }),
              HasSubstr("a.h5:/layers/3/gram: shape [2, 3], expected [3, 2]"));
  EXPECT_THAT(error_of([&] { reader.ints("/layers/3/gram", {2, 3}); }), HasSubstr("int64"));
  EXPECT_THAT(error_of([&] { reader.doubles("/absent", {1}); }), HasSubstr("no such dataset"));
  EXPECT_THAT(error_of([&] { reader.text("/ids"); }), HasSubstr("string"));
  EXPECT_THAT(error_of([&] { reader.attribute("absent"); }), HasSubstr("absent"));
}

TEST_F(Hdf5Test, RefusesToWriteOverAFileOrAnInconsistentDataset) {
  write_sample(file("a.h5"));
  EXPECT_THROW(Hdf5Writer(file("a.h5")), Error);
  Hdf5Writer writer(file("b.h5"));
  EXPECT_THROW(writer.dataset("/x", std::vector<double>{1, 2}, {3}), Error);
  EXPECT_THROW(writer.dataset("/x", std::vector<double>{1, 2}, {2}, {"a", "b"}), Error);
}

// Headers of heaps that lie in one another, each with an object that reaches behind them all: as many walks as headers.
TEST_F(Hdf5Test, HeapsThatOverlapAreNotWalkedOverAndOver) {
  constexpr std::size_t kHeaders = 20'000, kTail = std::size_t{1} << 20;
  std::string bytes;
  const auto number = [&](std::uint64_t value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  const std::size_t whole = 32 * kHeaders + kTail;
  for (std::size_t i = 0; i < kHeaders; ++i) {
    bytes += std::string("GCOL\1\0\0\0", 8);
    number(whole - 32 * i);
    number(1);  // an object and its size
    number(32 * (kHeaders - 1 - i));
  }
  while (bytes.size() < whole) {
    number(0);  // free space
    number(16);
  }
  write_bytes(file("heaps.h5"), bytes);
  EXPECT_THAT(error_of([&] { check_hdf5_heaps(file("heaps.h5")); }), HasSubstr("damaged"));
}

TEST_F(Hdf5Test, RefusesWhatIsNotAWholeHdf5File) {
  write_bytes(file("text.h5"), "not HDF5 at all");
  EXPECT_THAT(error_of([&] { Hdf5Reader reader(file("text.h5")); }), HasSubstr("text.h5"));
  EXPECT_THAT(error_of([&] { Hdf5Reader reader(file("absent.h5")); }), HasSubstr("no such file"));
  write_sample(file("a.h5"));
  const std::string bytes = bytes_of(file("a.h5"));
  for (std::size_t length :
       {bytes.size() - 1, bytes.size() / 2, std::size_t{100}, std::size_t{0}}) {
    write_bytes(file("cut.h5"), bytes.substr(0, length));
    EXPECT_THAT(error_of([&] { Hdf5Reader reader(file("cut.h5")); }), HasSubstr("truncated"))
        << length;
  }
}

// A changed byte never changes what is read: it is an Error, or lies where nothing is read from; never a crash or a
// huge allocation.
TEST_F(Hdf5Test, FindsDamagedBytes) {
  const std::vector<double> numbers(3'000, 0.5);
  {
    Hdf5Writer writer(file("a.h5"));
    writer.dataset("/g/x", std::vector<double>{1, 2, 3}, {3});
    writer.dataset("/ids", counting(10'000), {10'000});
    writer.dataset("/numbers", numbers, {3, 1'000});
    writer.close();
  }
  const std::string bytes = bytes_of(file("a.h5"));
  ASSERT_EQ(bytes.find("GCOL"), std::string::npos);
  int refused = 0, tried = 0;
  const auto damage = [&](std::size_t place, std::size_t count) {
    std::string damaged = bytes;
    for (std::size_t i = place; i < std::min(place + count, bytes.size()); ++i) {
      damaged[i] = static_cast<char>(count == 1 ? damaged[i] ^ 0xff : 0);
    }
    write_bytes(file("damaged.h5"), damaged);
    ++tried;
    refused += !error_of([&] {
                  const Hdf5Reader reader(file("damaged.h5"));
                  EXPECT_THAT(reader.doubles("/g/x", {3}), ElementsAre(1, 2, 3)) << place;
                  EXPECT_EQ(reader.ints("/ids", {10'000}), counting(10'000)) << place;
                  EXPECT_EQ(reader.doubles("/numbers", {3, 1'000}), numbers) << place;
                }).empty();
  };
  for (std::size_t i = 0; i < bytes.size(); i += 23) {
    damage(i, 1);
  }
  for (std::size_t page = 0; page < bytes.size(); page += 4096) {
    damage(page, 4096);  // as a disk loses it
  }
  EXPECT_GT(refused, tried / 2);
}

TEST_F(Hdf5Test, FindsDamagedText) {
  write_sample(file("a.h5"));
  std::string bytes = bytes_of(file("a.h5"));
  const std::size_t place = bytes.find("\"text\"");
  ASSERT_NE(place, std::string::npos);
  bytes[place + 1] = 'T';
  write_bytes(file("damaged.h5"), bytes);
  const Hdf5Reader reader(file("damaged.h5"));
  EXPECT_THAT(error_of([&] { reader.text("/options"); }),
              HasSubstr("damaged.h5:/options: the data differ from their checksum"));
}

// Every byte of the heap of strings: the library would follow a wrong size for ever.
TEST_F(Hdf5Test, FindsDamagedHeaps) {
  write_sample(file("a.h5"));
  const std::string bytes = bytes_of(file("a.h5"));
  const std::size_t heap = bytes.find("GCOL");
  ASSERT_NE(heap, std::string::npos);
  int refused = 0, number = 0;
  for (std::size_t i = heap; i < heap + 600; ++i) {
    for (const auto& [flip, reserved] : {std::pair(0x01, 0), {0x40, 0}, {0xff, 0}, {0x01, 1}}) {
      std::string damaged = bytes;
      damaged[heap + 5] = static_cast<char>(reserved);  // a byte that the library does not read
      damaged[i] = static_cast<char>(static_cast<unsigned char>(damaged[i]) ^ flip);
      const std::string name = fmt::format("damaged{}.h5", ++number);  // a file is checked once
      write_bytes(file(name), damaged);
      refused += !error_of([&] {
                    const Hdf5Reader reader(file(name));
                    EXPECT_EQ(reader.text("/options"), "{\"text\": \"é\"}") << i;
                  }).empty();
      EXPECT_EQ(error_of([&] { Hdf5Reader reader(file(name)); }),
                error_of([&] { Hdf5Reader reader(file(name)); }));  // a refused file stays so
      std::filesystem::remove(file(name));
    }
  }
  EXPECT_GT(refused, 100);
}

TEST_F(Hdf5Test, ReadsDatasetsWithoutAChecksum) {
  write_sample(file("a.h5"));
  const hid_t opened = H5Fopen(file("a.h5").c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  ASSERT_GE(H5Adelete_by_name(opened, "/layers/3/gram", "checksum", H5P_DEFAULT), 0);
  H5Fclose(opened);
  EXPECT_THAT(Hdf5Reader(file("a.h5")).doubles("/layers/3/gram", {2, 3}),
              ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST_F(Hdf5Test, RefusesLinksOutOfTheFileAndDataThatIsNotThere) {
  write_sample(file("a.h5"));
  const hid_t opened = H5Fcreate(file("b.h5").c_str(), H5F_ACC_EXCL, H5P_DEFAULT, H5P_DEFAULT);
  H5Lcreate_external("a.h5", "/ids", opened, "outside", H5P_DEFAULT, H5P_DEFAULT);
  H5Lcreate_soft("/huge", opened, "soft", H5P_DEFAULT, H5P_DEFAULT);
  const hsize_t size[] = {hsize_t{1} << 36};
  const hid_t space = H5Screate_simple(1, size, nullptr);
  H5Dclose(H5Dcreate2(opened, "huge", H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  H5Sclose(space);
  H5Fclose(opened);
  const Hdf5Reader reader(file("b.h5"));
  EXPECT_FALSE(reader.contains("/outside"));
  EXPECT_THROW(reader.shape("/outside"), Error);
  EXPECT_THROW(reader.shape("/soft"), Error);
  EXPECT_THAT(error_of([&] { reader.ints("/huge", reader.shape("/huge")); }),
              HasSubstr("incomplete"));
}

// A limit on the size of files while it lives: writes fail as on a full disk.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) : old_handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &old_limit_);
    rlimit limit = old_limit_;
    limit.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileLimit() {
    setrlimit(RLIMIT_FSIZE, &old_limit_);
    std::signal(SIGXFSZ, old_handler_);
  }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

 private:
  void (*old_handler_)(int);
  rlimit old_limit_ = {};
};

TEST_F(Hdf5Test, ReportsAFullDisk) {
  const std::string message = error_of([&] {
    const FileLimit limit(64 << 10);
    Hdf5Writer writer(file("a.h5"));
    writer.dataset("/x", std::vector<double>(100'000, 1.0), {100'000});
    writer.close();
  });
  EXPECT_THAT(message, HasSubstr("a.h5"));
  EXPECT_THAT(message, HasSubstr("File too large"));
}

// The library writes small data when their dataset is closed; the disk may have room again when the file is.
TEST_F(Hdf5Test, ReportsADiskThatIsFullForAMoment) {
  Hdf5Writer writer(file("a.h5"));
  writer.dataset("/before", std::vector<double>(1000, 1.0), {1000});
  const std::string message = error_of([&] {
    const FileLimit limit(4 << 10);
    writer.dataset("/x", std::vector<double>(1000, 2.0), {1000});
  });
  EXPECT_THAT(message, HasSubstr("a.h5:/x: cannot write the dataset: File too large"));
}

}  // namespace
}  // namespace kvc
