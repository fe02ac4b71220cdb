#include "core/command.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <iterator>
#include <new>

#include "core/error.h"
#include "core/interrupt.h"
#include "core/progress.h"

namespace kvc {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Outcome {
  int code = 0;
  std::string out, err;
};

// Runs "kvtest <arguments>" in this process; `body` is the action.
Outcome run(
    std::vector<std::string> arguments, const std::function<void()>& body = [] {},
    CommonOptions* options = nullptr) {
  arguments.insert(arguments.begin(), "/somewhere/kvtest");
  std::vector<char*> argv;
  for (std::string& argument : arguments) {
    argv.push_back(argument.data());
  }
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  Outcome outcome;
  outcome.code = run_command(static_cast<int>(argv.size()), argv.data(), "Tests.",
                             [&](CLI::App&, CommonOptions& common) {
                               return [&] {
                                 if (options != nullptr) {
                                   *options = common;
                                 }
                                 body();
                               };
                             });
  outcome.out = ::testing::internal::GetCapturedStdout();
  outcome.err = ::testing::internal::GetCapturedStderr();
  return outcome;
}

TEST(RunCommand, ParsesCommonOptions) {
  CommonOptions options;
  const Outcome outcome = run(
      {"--device", "cuda:3", "--threads", "2", "--seed", "7", "--force", "--quiet", "--json",
       "--log-level", "debug"},
      [] {}, &options);
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(options.device, "cuda:3");
  EXPECT_EQ(options.threads, 2);
  EXPECT_EQ(options.seed, 7u);
  EXPECT_TRUE(options.force && options.quiet && options.json);
  EXPECT_STREQ(getenv("MKL_NUM_THREADS"), "2");
  EXPECT_STREQ(getenv("MKL_DYNAMIC"), "FALSE");
}

TEST(RunCommand, PrintsHelpAndVersionToStandardOutput) {
  const Outcome help = run({"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.out, HasSubstr("--log-level"));
  const Outcome version = run({"--version"});
  EXPECT_EQ(version.code, 0);
  EXPECT_EQ(version.out, "kvtest 0.1.0\n");
}

TEST(RunCommand, UsageErrorsGiveTwoAndOneLine) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"--absent"},
                                             {"extra"},
                                             {"--device", "gpu"},
                                             {"--device", "cuda:"},
                                             {"--device", "cuda:x"},
                                             {"--threads", "-1"},
                                             {"--threads", "many"},
                                             {"--seed", "-1"},
                                             {"--log-level", "loud"},
                                             {"--seed"}}) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments.front();
    EXPECT_THAT(outcome.err, StartsWith("kvtest: error: "));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_EQ(outcome.out, "");
  }
}

TEST(RunCommand, UnexpectedArgumentsAreNamedInTheirOrder) {
  EXPECT_THAT(run({"--absent", "3", "last"}).err,
              StartsWith("kvtest: error: not expected: --absent 3 last; see"));
}

TEST(RunCommand, NumbersThatDoNotFitAreRefused) {
  const auto outcome_of = [](const char* option, std::string number) {
    std::vector<std::string> words{"kvtest", option, std::move(number)};
    std::vector<char*> argv;
    std::ranges::transform(words, std::back_inserter(argv), [](auto& word) { return word.data(); });
    std::int64_t count = 0;
    std::uint64_t size = 0;
    ::testing::internal::CaptureStderr();
    const int code = run_command(3, argv.data(), "Tests.", [&](CLI::App& app, CommonOptions&) {
      app.add_option("--count", count);
      app.add_option("--size", size);
      return [] {};
    });
    return std::pair(code, ::testing::internal::GetCapturedStderr());
  };
  EXPECT_EQ(outcome_of("--count", "9223372036854775807").first, 0);
  EXPECT_EQ(outcome_of("--size", "18446744073709551615").first, 0);
  for (const auto& [option, number] :
       {std::pair{"--count", "9223372036854775808"}, {"--size", "18446744073709551616"}}) {
    const auto [code, message] = outcome_of(option, number);
    EXPECT_EQ(code, 2);
    EXPECT_THAT(message, HasSubstr(fmt::format("{}: {} does not fit in 64 bits", option, number)));
  }
}

TEST(RunCommand, ErrorsBecomeOneMessageAndTheirCode) {
  const Outcome failed = run({}, [] { fail("x.h5: {} is too large", 3); });
  EXPECT_EQ(failed.code, 1);
  EXPECT_EQ(failed.err, "kvtest: error: x.h5: 3 is too large\n");
  EXPECT_EQ(run({}, [] { fail_usage("no"); }).code, 2);
  EXPECT_EQ(run({}, [] { throw Error("missed", ExitCode::kThresholdMissed); }).code, 3);
  const std::string out_of_memory =
      "kvtest: error: out of memory; free some, or raise the limit on this process\n";
  EXPECT_EQ(run({}, [] { throw std::bad_alloc(); }).err, out_of_memory);
  for (const char* const message :
       {"DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.\nbacktrace",
        "could not create a primitive"}) {
    EXPECT_EQ(run({}, [&] { throw std::runtime_error(message); }).err, out_of_memory);
  }
  EXPECT_EQ(run({},
                [] {
                  const auto denied = std::make_error_code(std::errc::permission_denied);
                  throw std::filesystem::filesystem_error("status", "a/config.json", denied);
                })
                .err,
            "kvtest: error: a/config.json: Permission denied\n");
  const Outcome torch = run({}, [] { throw std::runtime_error("first\nbacktrace"); });
  EXPECT_EQ(torch.code, 1);
  EXPECT_EQ(torch.err, "kvtest: error: first\n");
}

// Runs `body` as a program in a child process whose standard output is `descriptor` (-1: closed).
int exit_code_of_child(int descriptor, const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    descriptor < 0 ? close(STDOUT_FILENO) : dup2(descriptor, STDOUT_FILENO);
    close(STDERR_FILENO);
    char name[] = "kvtest";
    char* argv[] = {name, nullptr};
    std::_Exit(
        run_command(1, argv, "Tests.", [&](CLI::App&, CommonOptions&) -> Action { return body; }));
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

TEST(RunCommand, UnwritableStandardOutputIsAFailure) {
  const auto print = [] { std::printf("result\n"); };
  const int full = open("/dev/full", O_WRONLY);
  EXPECT_EQ(exit_code_of_child(full, print), 1);
  EXPECT_EQ(exit_code_of_child(full, [] {}), 0);
  close(full);
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  close(pipe_ends[0]);
  EXPECT_EQ(exit_code_of_child(pipe_ends[1], print), 1);
  close(pipe_ends[1]);
  EXPECT_EQ(exit_code_of_child(-1, print), 1);
  EXPECT_EQ(exit_code_of_child(-1, [] {}), 0);
}

TEST(RunCommand, SignalsEndLongLoops) {
  const int null = open("/dev/null", O_WRONLY);
  EXPECT_EQ(exit_code_of_child(null,
                               [] {
                                 std::raise(SIGTERM);
                                 Progress progress("loop", 2);
                                 progress.advance();
                               }),
            130);
  EXPECT_EQ(exit_code_of_child(null,
                               [] {
                                 std::raise(SIGINT);
                                 std::raise(SIGINT);
                               }),
            1000 + SIGINT);
  close(null);
}

TEST(Log, LevelsDecideWhatIsShown) {
  const auto shown = [](LogLevel level) {
    ::testing::internal::CaptureStderr();
    set_log_level(level);
    log_debug("d");
    log_info("i");
    log_warning("w");
    set_log_level(LogLevel::kInfo);
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(shown(LogLevel::kError), "");
  EXPECT_EQ(shown(LogLevel::kWarning), "warning: w\n");
  EXPECT_EQ(shown(LogLevel::kDebug), "debug: d\ni\nwarning: w\n");
}

TEST(Log, SaysTheSameThingOnce) {
  ::testing::internal::CaptureStderr();
  for (const char* message : {"a", "b", "a"}) {
    log_info_once(message);
  }
  log_info("a");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "a\nb\na\n");
}

}  // namespace
}  // namespace kvc
