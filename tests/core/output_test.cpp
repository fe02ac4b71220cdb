#include "core/output.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <csignal>

#include "tests/core/core_fixture.h"

namespace kvc {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Output : public FilesTest {
 protected:
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(directory())) {
      found.push_back(entry.path().filename().string());
    }
    std::sort(found.begin(), found.end());
    return found;
  }
  void write_directory(const std::string& text, bool force) {
    OutputDirectory output(file("out"), force);
    write_file(output.path() / "a", text);
    output.commit();
  }
  // A child builds an output and waits to be killed; returns its process id once it has begun.
  template <typename Build>
  pid_t start_child(const Build& build) {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
      build();  // its output stays alive
      EXPECT_EQ(::write(ready[1], "x", 1), 1);
      while (true) {
        pause();
      }
    }
    char byte = 0;
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
    return child;
  }
  void kill_child(pid_t child) {
    ASSERT_EQ(kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
  }
};

TEST_F(Output, AppearsOnlyWhenCommitted) {
  {
    OutputDirectory output(file("out"), false);
    fs::create_directory(output.path() / "sub");
    write_file(output.path() / "sub/a", "text");
    struct stat status {};
    ASSERT_EQ(stat(output.path().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777u, 0700u);
    EXPECT_THAT(names(), ElementsAre(".out.partial"));
    output.commit();
    EXPECT_THAT(names(), ElementsAre("out"));
  }
  EXPECT_EQ(contents(file("out/sub/a")), "text");
  ASSERT_EQ(mkdir(file("plain").c_str(), 0777), 0);
  EXPECT_EQ(fs::status(file("out")).permissions(), fs::status(file("plain")).permissions());
}

TEST_F(Output, LeavesNothingWithoutCommit) {
  {
    OutputDirectory output(file("out"), false);
    write_file(output.path() / "a", "text");
    OutputFile other(file("b"), false);
    write_file(other.path(), "text");
  }
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(Output, ASlashAtTheEndIsNoPartOfItsName) {
  EXPECT_EQ(output_path("a/out/"), "a/out");
  EXPECT_EQ(output_path("a/b/../out"), "a/out");
}

TEST_F(Output, IsApartFromEveryInput) {
  fs::create_directories(file("input/part"));
  fs::create_directory_symlink(file("input"), file("link"));
  for (const char* output : {"input", "input/part", "input/new", "link", "link/new", "."}) {
    EXPECT_THROW(check_apart(file(output), file("input")), Error) << output;
  }
  EXPECT_NO_THROW(check_apart(file("input2"), file("input")));
  EXPECT_NO_THROW(check_apart(file("in"), file("input")));
}

TEST_F(Output, ANameThatIsTooLongIsRefused) {
  EXPECT_THROW(check_output(file(std::string(300, 'a')), false), Error);
}

TEST_F(Output, RefusesAnExistingOneUnlessForced) {
  write_directory("old", false);
  EXPECT_THAT(
      error_of([&] { write_directory("new", false); }),
      AllOf(HasSubstr(file("out").string()), HasSubstr("exists already"), HasSubstr("--force")));
  EXPECT_EQ(contents(file("out/a")), "old");
  put(file("out/extra"), "x");
  write_directory("new", true);
  EXPECT_EQ(contents(file("out/a")), "new");
  EXPECT_FALSE(fs::exists(file("out/extra")));
  EXPECT_THAT(names(), ElementsAre("out"));
}

// --force replaces outputs; whatever else has their name is kept beside them.
TEST_F(Output, KeepsFilesOfSomethingElse) {
  for (const char* aside : {"out.replaced", "out.replaced-2"}) {
    fs::remove_all(file("out"));
    fs::create_directory(file("out"));
    put(file("out/thesis"), "mine");
    write_directory("new", true);
    EXPECT_EQ(contents(file("out/a")), "new");
    EXPECT_FALSE(fs::exists(file("out/thesis")));
    EXPECT_EQ(contents(file(aside) / "thesis"), "mine");
  }
  fs::remove_all(file("out"));
  fs::create_directory(file("out"));
  put(file("out/config.json"), R"({"_name_or_path": "kvconvert"})");  // an original
  write_directory("new", true);
  EXPECT_THAT(names(), ElementsAre("out", "out.replaced", "out.replaced-2", "out.replaced-3"));
  fs::remove_all(file("out.replaced-3"));
  fs::remove_all(file("out"));
  fs::create_directory(file("out"));
  put(file("out/config.json"), R"({"kvconvert": {}})");  // a conversion
  write_directory("new", true);
  fs::remove_all(file("out"));
  fs::create_directory(file("out"));  // empty
  write_directory("new", true);
  EXPECT_THAT(names(), ElementsAre("out", "out.replaced", "out.replaced-2"));
}

TEST_F(Output, IsWithinADirectoryThatDoesNotExistYet) {
  EXPECT_TRUE(is_within("absent/work", "absent"));
  EXPECT_TRUE(is_within("absent", fs::absolute("absent")));
  EXPECT_TRUE(is_within(fs::absolute("absent/work"), "absent"));
  EXPECT_FALSE(is_within("absent-2", "absent"));
}

TEST_F(Output, KeepsTheOldOneUntilTheNewOneIsComplete) {
  write_directory("old", false);
  {
    OutputDirectory output(file("out"), true);
    write_file(output.path() / "a", "unfinished");
    EXPECT_EQ(contents(file("out/a")), "old");
  }
  EXPECT_EQ(contents(file("out/a")), "old");
  EXPECT_THAT(names(), ElementsAre("out"));
}

TEST_F(Output, DoesNotReplaceWhatAppearedMeanwhile) {
  EXPECT_THAT(error_of([&] {
                OutputDirectory output(file("out"), false);
                fs::create_directory(file("out"));
                output.commit();
              }),
              HasSubstr("appeared while it was being written"));
  EXPECT_THAT(error_of([&] {
                OutputFile output(file("b"), false);
                write_file(output.path(), "new");
                put(file("b"), "other");
                output.commit();
              }),
              HasSubstr("appeared"));
  EXPECT_EQ(contents(file("b")), "other");
  EXPECT_THAT(names(), ElementsAre("b", "out"));
}

TEST_F(Output, ChecksTheName) {
  EXPECT_THAT(error_of([&] { check_output(file("absent/out"), true); }),
              HasSubstr("parent directory does not exist"));
  EXPECT_THAT(error_of([&] { check_output("/", true); }), HasSubstr("not a name"));
  EXPECT_THAT(error_of([&] { check_output("..", true); }), HasSubstr("not a name"));
  EXPECT_EQ(error_of([&] { check_output(file("out/"), false); }), "");
  EXPECT_EQ(error_of([&] { check_output("no_such_name_here", false); }), "");
  fs::create_symlink("nowhere", file("link"));
  EXPECT_THAT(error_of([&] { check_output(file("link"), false); }), HasSubstr("exists already"));
  EXPECT_THAT(error_of([&] { check_output(file("link"), true); }), HasSubstr("symbolic link"));
  fs::create_directory(file("real"));
  fs::create_directory_symlink(file("real"), file("to real"));
  EXPECT_THAT(error_of([&] { OutputDirectory output(file("to real"), true); }),
              HasSubstr("give the directory that it points to"));
  put(file("f"), "x");
  EXPECT_THAT(error_of([&] { OutputDirectory output(file("f"), true); }),
              HasSubstr("no directory"));
  fs::create_directory(file("d"));
  EXPECT_THAT(error_of([&] { OutputFile output(file("d"), true); }), HasSubstr("is a directory"));
  const fs::path parent = fs::current_path().parent_path();
  if (parent.has_filename()) {
    EXPECT_THAT(error_of([&] { OutputDirectory output(parent, true); }),
                HasSubstr("holds the working directory"));
  }
}

TEST_F(Output, TakesATrailingSlash) {
  OutputDirectory output(file("out/"), false);
  EXPECT_EQ(output.path(), file(".out.partial"));
  output.commit();
  EXPECT_THAT(names(), ElementsAre("out"));
}

TEST_F(Output, IsLockedAgainstAnotherProcess) {
  const pid_t child = start_child([&] { new OutputDirectory(file("out"), false); });
  EXPECT_THAT(error_of([&] { OutputDirectory output(file("out"), false); }),
              AllOf(HasSubstr("out"), HasSubstr("another process is writing")));
  EXPECT_THAT(error_of([&] { OutputFile output(file("out"), false); }),
              HasSubstr("another process"));
  kill_child(child);
}

TEST_F(Output, SurvivesAKilledRun) {
  const pid_t child = start_child([&] {
    auto* output = new OutputDirectory(file("out"), false);
    fs::create_directory(output->path() / "sub");
    write_file(output->path() / "sub/leftover", "x");
  });
  kill_child(child);
  EXPECT_THAT(names(), ElementsAre(".out.partial"));
  write_directory("new", false);
  EXPECT_THAT(names(), ElementsAre("out"));
  EXPECT_FALSE(fs::exists(file("out/sub")));

  kill_child(start_child([&] {
    auto* output = new OutputFile(file("b"), false);
    write_file(output->path(), "half");
  }));
  write_file_atomically(file("b"), "whole", false);
  EXPECT_EQ(contents(file("b")), "whole");
  EXPECT_THAT(names(), ElementsAre("b", "out"));
}

TEST_F(Output, WritesFilesAtomically) {
  write_file_atomically(file("b"), "one", false);
  EXPECT_THAT(error_of([&] { write_file_atomically(file("b"), "two", false); }),
              HasSubstr("exists"));
  EXPECT_EQ(read_file(file("b"), 3), "one");
  write_file_atomically(file("b"), "two", true);
  EXPECT_EQ(read_file(file("b"), 3), "two");
  EXPECT_THAT(names(), ElementsAre("b"));
}

TEST_F(Output, ReadsWholeSmallFiles) {
  put(file("b"), "four");
  EXPECT_EQ(read_file(file("b"), 4), "four");
  EXPECT_THAT(error_of([&] { read_file(file("b"), 3); }), HasSubstr("4 bytes, at most 3"));
  EXPECT_THAT(error_of([&] { read_file(directory(), 3); }), HasSubstr("not a regular file"));
  EXPECT_THAT(error_of([&] { read_file(file("absent"), 3); }), HasSubstr("No such file"));
}

TEST_F(Output, RemovesEverythingWhenTheDiskIsFull) {
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1000, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string error = error_of([&] { write_directory(std::string(2000, 'x'), false); });
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(error, HasSubstr(".out.partial/a: writing failed after 1000 bytes"));
  EXPECT_THAT(names(), IsEmpty());
}

}  // namespace
}  // namespace kvc
