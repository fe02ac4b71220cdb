// Errors: every failure is an exception that names the subject, what was expected, what was found and
// the way out. run_command (core/command.h) turns it into one message and an exit code.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace kvc {

// Exit codes of every program (design contract).
enum class ExitCode : int {
  kDone = 0,
  kFailed = 1,
  kUsage = 2,
  kThresholdMissed = 3,
  kInterrupted = 130,
};

// A failure; the message is complete and meant for the user.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, ExitCode code = ExitCode::kFailed)
      : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

// Options that are invalid for every input: exit code 2.
class UsageError : public Error {
 public:
  explicit UsageError(const std::string& message) : Error(message, ExitCode::kUsage) {}
};

// A result that is not good enough by a limit that an option sets: nothing went wrong.
class RefusedError : public Error {
 public:
  explicit RefusedError(const std::string& message) : Error(message) {}
};

template <typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
[[noreturn]] void fail_usage(fmt::format_string<Args...> format, Args&&... args) {
  throw UsageError(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace kvc

// Always on. Throws kvc::Error with the formatted message.
#define KVC_CHECK(condition, ...) \
  do {                            \
    if (!(condition)) {           \
      ::kvc::fail(__VA_ARGS__);   \
    }                             \
  } while (false)

// The same for options: throws kvc::UsageError (exit code 2).
#define KVC_CHECK_USAGE(condition, ...) \
  do {                                  \
    if (!(condition)) {                 \
      ::kvc::fail_usage(__VA_ARGS__);   \
    }                                   \
  } while (false)
