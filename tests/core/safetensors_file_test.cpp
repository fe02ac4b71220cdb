#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>

#include "core/safetensors.h"
#include "tests/core/core_fixture.h"

namespace kvc::safetensors_file_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Safetensors : public FilesTest {
 protected:
  // Reads `path`, writes all its tensors in reverse order, and returns both files' bytes.
  std::pair<std::string, std::string> rewrite(const std::filesystem::path& path) {
    const SafetensorsFile original = SafetensorsFile::open(path);
    std::vector<TensorSource> sources;
    for (const TensorInfo& tensor : original.tensors()) {
      sources.push_back({tensor.name, tensor.dtype, tensor.shape,
                         [&original, &tensor] { return original.bytes(tensor); }});
    }
    std::reverse(sources.begin(), sources.end());
    write_safetensors(file("copy.safetensors"), std::move(sources));
    return {contents(path), contents(file("copy.safetensors"))};
  }
};

const std::filesystem::path kData = KVC_TEST_DATA;

TEST_F(Safetensors, WritesTheSameBytesAsThePythonLibrary) {
  for (const char* name :
       {"safetensors/all_dtypes.safetensors", "safetensors/no_tensors.safetensors",
        "reference-llama/model.safetensors", "stories260K-hf/model.safetensors"}) {
    const auto [original, copy] = rewrite(kData / name);
    EXPECT_TRUE(original == copy) << name;
    std::filesystem::remove(file("copy.safetensors"));
  }
}

TEST_F(Safetensors, ReadsWhatThePythonLibraryWrote) {
  const SafetensorsFile golden =
      SafetensorsFile::open(kData / "safetensors/all_dtypes.safetensors");
  EXPECT_EQ(golden.tensors().size(), 24u);
  EXPECT_EQ(golden.metadata().at("format"), "pt");
  EXPECT_EQ(golden.header().substr(0, 16), "{\"__metadata__\":");
  const TensorInfo* layer = golden.find("layers.10.weight");
  ASSERT_NE(layer, nullptr);
  EXPECT_EQ(layer->dtype, Dtype::kBF16);
  EXPECT_THAT(layer->shape, ElementsAre(5));
  const std::span<const std::byte> bytes = golden.bytes(*layer);
  ASSERT_EQ(bytes.size(), 10u);
  EXPECT_EQ(bytes.front(), std::byte{110});
  EXPECT_EQ(bytes.back(), std::byte{119});
  EXPECT_NE(golden.find("caf\u00e9 \"quoted\" \\ \U0001f600"), nullptr);
  EXPECT_EQ(golden.find("absent"), nullptr);
  EXPECT_TRUE(golden.bytes(*golden.find("empty")).empty());
}

TEST_F(Safetensors, StaysReadableThroughCopiesOfTheObject) {
  put(file("a.safetensors"),
      safetensors_bytes(R"({"t":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 0) + "hi");
  SafetensorsFile copy = [&] {
    const SafetensorsFile original = SafetensorsFile::open(file("a.safetensors"));
    return original;
  }();
  EXPECT_EQ(copy.bytes(copy.tensors()[0])[1], std::byte{'i'});
}

TEST_F(Safetensors, FollowsLinksButOpensOnlyRegularFiles) {
  put(file("blob"), zeros_file({"t"}));
  std::filesystem::create_symlink(file("blob"), file("model.safetensors"));
  EXPECT_NE(SafetensorsFile::open(file("model.safetensors")).find("t"), nullptr);
  ASSERT_EQ(mkfifo(file("fifo").c_str(), 0600), 0);
  EXPECT_THAT(error_of([&] { SafetensorsFile::open(file("fifo")); }),
              HasSubstr("fifo: not a regular file"));
  EXPECT_THAT(error_of([&] { SafetensorsFile::open(directory()); }), HasSubstr("not a regular"));
  EXPECT_THAT(error_of([&] { SafetensorsFile::open(file("absent")); }), HasSubstr("No such file"));
  put(file("empty"), "");
  EXPECT_THAT(error_of([&] { SafetensorsFile::open(file("empty")); }), HasSubstr("too few"));
}

std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

TEST_F(Safetensors, AsksForTensorsOneByOneInFileOrder) {
  std::vector<std::string> order;
  std::string buffer;
  const auto source = [&](const std::string& name, Dtype dtype, std::int64_t size) {
    return TensorSource{
        name, dtype, {size}, [&order, &buffer, name, dtype, size] {
          order.push_back(name);
          buffer.assign(static_cast<std::size_t>(size * bits_per_element(dtype) / 8), name[0]);
          return as_bytes(buffer);
        }};
  };
  write_safetensors(file("a"), {source("b", Dtype::kF32, 1), source("a", Dtype::kF32, 2),
                                source("z", Dtype::kI64, 1), source("c", Dtype::kBool, 3)});
  EXPECT_THAT(order, ElementsAre("z", "a", "b", "c"));
  const std::string bytes = contents(file("a"));
  EXPECT_EQ(bytes.substr(bytes.size() - 23), "zzzzzzzzaaaaaaaabbbbccc");
}

TEST_F(Safetensors, ReplacesAFileAndWhatAKilledRunLeft) {
  const std::vector<std::byte> data(8, std::byte{7});
  const auto sources = [&] {
    return std::vector<TensorSource>{{"t", Dtype::kU8, {8}, [&] { return std::span(data); }}};
  };
  for (const char* name : {"a", "a.next"}) {
    std::ofstream(file(name)) << "cut short";
  }
  replace_safetensors(file("a"), sources());
  EXPECT_NE(SafetensorsFile::open(file("a")).find("t"), nullptr);
  EXPECT_FALSE(std::filesystem::exists(file("a.next")));
}

TEST_F(Safetensors, RefusesWrongSources) {
  const std::string four(4, 'x');
  const auto source = [&](const std::string& name, std::vector<std::int64_t> shape) {
    return TensorSource{name, Dtype::kF32, std::move(shape), [&] { return as_bytes(four); }};
  };
  const auto error = [&](std::vector<TensorSource> sources) {
    return error_of([&] { write_safetensors(file("a"), std::move(sources)); });
  };
  EXPECT_THAT(error({source("t", {2})}),
              AllOf(HasSubstr("tensor 't'"), HasSubstr("gave 4 bytes, its shape needs 8")));
  EXPECT_FALSE(std::filesystem::exists(file("a")));
  EXPECT_THAT(error({source("t", {1}), source("t", {1})}), HasSubstr("'t' appears twice"));
  EXPECT_THAT(error({source("", {1})}), HasSubstr("without a name"));
  EXPECT_THAT(error({source("__metadata__", {1})}), HasSubstr("__metadata__"));
  EXPECT_THAT(error({source("t", {-1})}), HasSubstr("negative size"));
  EXPECT_THAT(error({source("t", {1, 1, 1, 1, 1, 1, 1, 1, 1})}), HasSubstr("9 dimensions"));
  put(file("a"), "precious");
  EXPECT_THAT(error({source("t", {1})}), HasSubstr("File exists"));
  EXPECT_EQ(contents(file("a")), "precious");
}

TEST_F(Safetensors, ReportsAFullDisk) {
  const std::string data(100'000, 'x');
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{50'000, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string error = error_of([&] {
    write_safetensors(file("a"), {{"t", Dtype::kU8, {100'000}, [&] { return as_bytes(data); }}});
  });
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(error,
              AllOf(HasSubstr(file("a").string()), HasSubstr("writing failed after 50000 bytes"),
                    HasSubstr("free some space")));
  EXPECT_FALSE(std::filesystem::exists(file("a")));
}

}  // namespace
}  // namespace kvc::safetensors_file_test
