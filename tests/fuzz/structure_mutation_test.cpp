// Wrong configs, indices and tokenizers: each is refused with one line, or gives a sane result; none
// crashes, hangs, or takes more memory than the files justify.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "convert/plan_table.h"
#include "core/error.h"
#include "core/progress.h"
#include "model/config.h"
#include "model/text.h"
#include "runtime/engine.h"
#include "tests/fuzz/json_mutator.h"
#include "tests/testing/temporary_directory.h"
#include "tests/testing/zoo.h"

namespace kvc {
namespace {

namespace fs = std::filesystem;
using testing::JsonMutator;
using testing::TemporaryDirectory;

constexpr unsigned kSeconds = 20;  // for one mutant, sanitizers included
// Beyond what the process has when a test begins. The libraries behind matrix products need address
// space, and crash where they do not get it.
constexpr rlim_t kMemory = std::size_t{1} << 30;
constexpr std::size_t kMaxMessage = 4100;

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kLimitMemory = false;  // shadow memory takes the whole address space
#else
constexpr bool kLimitMemory = true;
#endif

rlim_t address_space() {
  std::ifstream file("/proc/self/statm");
  std::size_t pages = 0;
  file >> pages;
  return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

// Bounds memory for the time of a test and, one mutant after the other, time: the default action of
// SIGALRM ends the test binary.
class Limits {
 public:
  Limits() {
    getrlimit(RLIMIT_AS, &before_);
    rlimit limit = before_;
    limit.rlim_cur = std::min<rlim_t>(before_.rlim_max, address_space() + kMemory);
    if (kLimitMemory) {
      setrlimit(RLIMIT_AS, &limit);
    }
  }
  ~Limits() {
    alarm(0);
    setrlimit(RLIMIT_AS, &before_);
  }
  Limits(const Limits&) = delete;
  Limits& operator=(const Limits&) = delete;

 private:
  rlimit before_{};
};

struct Counts {
  int accepted = 0, refused = 0;
};

// Only Error is a refusal: bad_alloc, or an exception of a library, is a finding.
void survive(const std::string& what, const std::function<void()>& read, Counts& counts) {
  SCOPED_TRACE(what);
  alarm(kSeconds);
  try {
    read();
    ++counts.accepted;
  } catch (const Error& error) {
    const std::string message = one_line(error.what());  // as the programs print it
    EXPECT_FALSE(message.empty());
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_LT(message.size(), kMaxMessage) << message;
    ++counts.refused;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "not an Error: " << error.what();
  }
}

void write(const fs::path& path, const std::string& text) {
  fs::remove(path);  // may be a link to the good one
  std::ofstream(path, std::ios::binary) << text;
}

// The files of a checkpoint as links, so that one of them can be replaced.
void link_files(const fs::path& from, const fs::path& to) {
  for (const fs::directory_entry& entry : fs::directory_iterator(from)) {
    fs::create_symlink(entry.path(), to / entry.path().filename());
  }
}

void plan(const fs::path& directory) {
  ConvertSettings settings;
  settings.layers_per_group = 2;
  resolve(settings);
  const Checkpoint checkpoint = Checkpoint::open_config_only(directory);
  EXPECT_FALSE(to_text(plan_table(read_model_config(checkpoint), settings, true)).empty());
}

void run_model(const fs::path& directory) {
  const Engine engine = Engine::load(directory, {});
  Sequence sequence = engine.new_sequence();
  const auto rows = engine.prefill({&sequence}, {{1, 2, 3}}, Engine::Rows::kLast);
  EXPECT_EQ(rows.front().size(-1), engine.config().vocab_size);
}

TEST(StructureMutation, Configs) {
  constexpr int kMutants = 12;                        // of each case
  run_model(testing::zoo_directory() / "llama_gqa");  // starts threads and code generators
  Counts plans, loads;
  std::uint64_t seed = 0;
  for (const std::string& name : testing::zoo_names()) {
    const TemporaryDirectory directory;
    const fs::path source = testing::zoo_directory() / name;
    link_files(source, directory.path());
    const Json good = read_json(source / "config.json");
    JsonMutator mutator(++seed);
    const Limits limits;
    for (int i = 0; i < kMutants; ++i) {
      const std::string text = mutator.mutant(good);
      write(directory / "config.json", text);
      const std::string what = fmt::format("{} {}: {}", name, i, text.substr(0, 3000));
      survive(
          what, [&] { plan(directory.path()); }, plans);
      survive(
          what, [&] { run_model(directory.path()); }, loads);
    }
  }
  EXPECT_GT(plans.accepted, plans.refused / 20);
  EXPECT_GT(plans.refused, 50);
  EXPECT_GT(loads.accepted, 0);
  EXPECT_GE(loads.refused, plans.refused / 2);
}

TEST(StructureMutation, Indices) {
  constexpr int kMutants = 120;
  const fs::path source = testing::zoo_directory() / "llama_gqa";
  const char* index = "model.safetensors.index.json";
  const TemporaryDirectory directory;
  link_files(source, directory.path());
  const Json good = read_json(source / index);
  JsonMutator mutator(1000);
  const Limits limits;
  Counts counts;
  for (int i = 0; i < kMutants; ++i) {
    const std::string text = mutator.mutant(good);
    write(directory / index, text);
    survive(
        fmt::format("{}: {}", i, text), [&] { run_model(directory.path()); }, counts);
  }
  EXPECT_GT(counts.accepted, 0);
  EXPECT_GT(counts.refused, kMutants / 2);
}

class TokenizerMutation : public ::testing::TestWithParam<const char*> {};

TEST_P(TokenizerMutation, LoadsOrIsRefused) {
  constexpr int kMutants = 100;
  const fs::path source = fs::path(KVC_TEST_DATA) / GetParam();
  const TemporaryDirectory directory;
  const Json good = read_json(source / "tokenizer.json", std::size_t{256} << 20);
  JsonMutator mutator(2000);
  const Limits limits;
  Counts counts;
  for (int i = 0; i < kMutants; ++i) {
    const std::string text = mutator.mutant(good);
    write(directory / "tokenizer.json", text);
    survive(
        fmt::format("{} {}", GetParam(), i),
        [&] {
          const Tokenizer tokenizer = Tokenizer::load(directory.path());
          const auto ids = tokenizer.encode("Once upon a time,\n\xC3\xA9\xF0\x9F\x92\xA9 <s>12 ");
          EXPECT_LT(ids.size(), 200u);
          tokenizer.decode(ids);
        },
        counts);
  }
  EXPECT_GT(counts.accepted, 0);
  EXPECT_GT(counts.refused, kMutants / 10);
}

INSTANTIATE_TEST_SUITE_P(Files, TokenizerMutation,
                         ::testing::Values("zoo", "stories260K-hf", "reference-llama"),
                         [](const auto& row) {
                           std::string name = row.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace kvc
