#include "core/command.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/interrupt.h"
#include "core/parse_number.h"
#include "core/progress.h"
#include "core/provenance.h"
#include "core/thread_waits.h"

namespace kvc {
namespace {

const std::map<std::string, LogLevel> kLogLevels = {{"error", LogLevel::kError},
                                                    {"warning", LogLevel::kWarning},
                                                    {"info", LogLevel::kInfo},
                                                    {"debug", LogLevel::kDebug}};
constexpr int kMaxThreads = 1024;
constexpr const char* kMayBeEmpty = "may be empty";  // the name of a validator

// A file opened while descriptor 0, 1 or 2 is closed would take its number and receive what is
// meant for the terminal. Standard output becomes unwritable, so that losing a result is noticed.
void reserve_standard_descriptors() {
  for (int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(descriptor, F_GETFD) == -1 && errno == EBADF) {
      [[maybe_unused]] const int opened =
          open("/dev/null", descriptor == STDERR_FILENO ? O_WRONLY : O_RDONLY);
    }
  }
}

// Without CLI11's notes on what a flag's second name means.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    static const std::string kNote = "{false}";
    std::string name = CLI::Formatter::make_option_name(option, is_positional);
    const std::size_t at = name.find(kNote);
    return at == std::string::npos ? name : name.erase(at, kNote.size());
  }
};

std::string check_device(const std::string& device) {
  const std::string digits = device.rfind("cuda:", 0) == 0 ? device.substr(5) : "0";
  const bool named = device == "auto" || device == "cpu" || device == "cuda" ||
                     (device.rfind("cuda:", 0) == 0 && !digits.empty() && digits.size() <= 3 &&
                      digits.find_first_not_of("0123456789") == std::string::npos);
  return named ? "" : fmt::format("'{}' is not auto, cpu, cuda or cuda:N", device);
}

// The conversion to unsigned would accept a sign, and take the largest number for larger ones.
std::string check_seed(const std::string& word) {
  std::uint64_t seed = 0;
  return parse_number(word, seed)
             ? ""
             : fmt::format("expected a number from 0 to 2^64 - 1, found '{}'", word);
}

void add_common_options(CLI::App& app, CommonOptions& common) {
  app.option_defaults()->always_capture_default();
  app.add_option("--device", common.device, "Where to compute: auto (the CPU), cpu, cuda or cuda:N")
      ->check(CLI::Validator([](std::string& device) { return check_device(device); }, "DEVICE",
                             "device"))
      ->group("Common");
  app.add_option("--threads", common.threads, "CPU threads; 0: all")
      ->check(CLI::Range(0, kMaxThreads))
      ->group("Common");
  app.add_option("--seed", common.seed, "Seed of every random choice")
      ->check(CLI::Validator([](std::string& word) { return check_seed(word); }, "", "seed"))
      ->group("Common");
  app.add_flag("--force", common.force,
               "Replace an existing output; continue despite refusals that name --force")
      ->group("Common");
  app.add_flag("--quiet", common.quiet, "Print only errors to standard error")->group("Common");
  app.add_flag("--json", common.json, "Print a machine-readable result to standard output")
      ->group("Common");
  app.add_option("--log-level", common.log_level, "error, warning, info or debug")
      ->check(CLI::IsMember({"error", "warning", "info", "debug"}))
      ->group("Common");
}

// MKL reads its variable when LibTorch first asks for the size of its pool, later than any parsing;
// the OpenMP runtime reads the other one when it is loaded, so it only reaches child processes.
void set_thread_count(int threads) {
  // Otherwise MKL shares small products among fewer threads until LibTorch first sets their number, and sums would depend on
  // what was computed before.
  setenv("MKL_DYNAMIC", "FALSE", 1);
  if (threads > 0) {
    setenv("MKL_NUM_THREADS", std::to_string(threads).c_str(), 1);
    setenv("OMP_NUM_THREADS", std::to_string(threads).c_str(), 1);
  }
}

void flush_standard_output() {
  std::cout.flush();
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;
  KVC_CHECK(flushed && !std::ferror(stdout) && std::cout.good(),
            "standard output: the result could not be written{}{}", errno != 0 ? ": " : "",
            errno != 0 ? std::strerror(errno) : "");
}

int report(const std::string& program, const std::string& message, ExitCode code) {
  const std::string line = fmt::format("{}: error: {}\n", program, one_line(message));
  std::fwrite(line.data(), 1, line.size(), stderr);
  return static_cast<int>(code);
}

bool takes_list(const CLI::Option& option) {
  return !option.get_positional() && option.get_expected_max() > 1;
}

bool is_directory(const std::string& word) {
  std::error_code ignored;
  return std::filesystem::is_directory(word, ignored);
}

// The arguments after the program's name. An option with a list of values takes what follows it up to the next option.
// No list takes directories, so directories that end one are arguments of their own, and move before the lists.
std::vector<std::string> arguments_of(const CLI::App& app, int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  auto lists = words.begin();  // the first one of lists that follow each other
  auto after = words.begin();  // behind the last one
  for (auto word = words.begin(); word != words.end(); ++word) {
    const std::string name = word->substr(0, word->find('='));
    const CLI::Option* option = name.starts_with("--") ? app.get_option_no_throw(name) : nullptr;
    if (option == nullptr || !takes_list(*option)) {
      continue;
    }
    if (word != after) {
      lists = word;
    }
    after =
        std::find_if(word + 1, words.end(), [](const auto& next) { return next.starts_with("-"); });
    const auto least = std::min(word + (name == *word ? 2 : 1), after);  // its first value stays
    auto values = after;
    while (values != least && is_directory(*(values - 1))) {
      --values;
    }
    lists = std::rotate(lists, values, after);
    word = after - 1;
  }
  return words;
}

// LibTorch appends a backtrace to its messages.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

constexpr const char* kOutOfMemory = "out of memory; free some, or raise the limit on this process";

// LibTorch's allocator and oneDNN have messages of their own where std::bad_alloc is meant.
bool means_out_of_memory(const std::string& text) {
  return text.find("can't allocate memory") != std::string::npos ||
         text.find("could not create a primitive") != std::string::npos;
}

bool takes_empty(CLI::Option& option) {
  try {
    return option.get_validator(kMayBeEmpty) != nullptr;
  } catch (const CLI::OptionNotFound&) {
    return false;
  }
}

// Refuses an empty value, which CLI11 takes for an option that is not given, and numbers of more than 64 bits, of which it
// would make the largest one.
void check_values(CLI::Option& option) {
  const std::string type = option.get_type_name();
  const bool is_unsigned = type.starts_with("UINT"), is_integer = type.starts_with("INT");
  if (type.empty() || option.get_positional() || takes_empty(option)) {
    return;
  }
  const auto check = [is_unsigned, is_integer](const std::string& word) -> std::string {
    if (word.empty()) {
      return "expected a value, found ''";
    }
    if (!is_unsigned && !is_integer) {
      return {};
    }
    errno = 0;
    is_unsigned ? static_cast<void>(std::strtoull(word.c_str(), nullptr, 0))
                : static_cast<void>(std::strtoll(word.c_str(), nullptr, 0));
    return errno == ERANGE ? word + " does not fit in 64 bits" : std::string();
  };
  option.check(CLI::Validator(check, ""));
}

int parse_and_run(int argc, char** argv, const std::string& program, const std::string& description,
                  const std::function<Action(CLI::App&, CommonOptions&)>& declare) {
  CLI::App app(description, program);
  CommonOptions common;
  add_common_options(app, common);
  app.formatter(std::make_shared<HelpFormatter>());
  app.set_version_flag("--version", fmt::format("{} {}", program, kToolVersion));
  const Action action = declare(app, common);
  for (CLI::Option* option : app.get_options()) {
    // An empty list is no default worth showing, and some defaults depend on other options: the help says how.
    if (option->get_default_str() == "[]" ||
        option->get_description().find("(default") != std::string::npos) {
      option->default_str("");
    }
    check_values(*option);
  }
  try {
    std::vector<std::string> arguments = arguments_of(app, argc, argv);
    std::ranges::reverse(arguments);  // as CLI11 takes them
    app.parse(std::move(arguments));
  } catch (const CLI::Success& request) {  // --help, --version
    app.exit(request);
    flush_standard_output();
    return static_cast<int>(ExitCode::kDone);
  } catch (const CLI::RequiredError& error) {
    for (const CLI::Option* option : app.get_options()) {
      if (option->get_positional() && option->get_required() && option->count() == 0) {
        fail_missing(app, option->get_name());
      }
    }
    fail_usage("{}; see {} --help", error.what(), program);
  } catch (const CLI::ExtrasError&) {
    fail_usage("not expected: {}; see {} --help", fmt::join(app.remaining(), " "), program);
  } catch (const CLI::ParseError& error) {
    fail_usage("{}; see {} --help", error.what(), program);
  }
  set_log_level(common.quiet ? LogLevel::kError : kLogLevels.at(common.log_level));
  set_thread_count(common.threads);
  install_interrupt_handlers();
  const ThreadWaits waits(common.threads);
  action();
  flush_standard_output();
  return static_cast<int>(ExitCode::kDone);
}

}  // namespace

void offer_only_cpu(CLI::App& app) {
  app.get_option("--device")->description("Where to compute: the CPU (auto or cpu)");
}

CLI::Validator at_least(double least) {
  const auto check = [least](const std::string& word) {
    double number = 0;
    return CLI::detail::lexical_cast(word, number) && number >= least
               ? std::string()
               : fmt::format("expected {} or more, found {}", least, word);
  };
  return CLI::Validator(check, "");
}

CLI::Validator may_be_empty() {
  return CLI::Validator([](const std::string&) { return std::string(); }, "", kMayBeEmpty);
}

void require_cpu(const CommonOptions& common) {
  KVC_CHECK_USAGE(common.device == "auto" || common.device == "cpu",
                  "--device {}: this program computes on the CPU; pass cpu or auto", common.device);
}

void fail_missing(const CLI::App& app, const std::string& name) {
  std::string note;
  for (const CLI::Option* option : app.get_options()) {
    if (takes_list(*option) && option->count() > 1) {
      note = fmt::format("; {} took {}: put {} before it", option->get_name(),
                         fmt::join(option->results(), " "), name);
    }
  }
  fail_usage("{} is required{}; see {} --help", name, note, app.get_name());
}

int run_command(int argc, char** argv, const std::string& description,
                const std::function<Action(CLI::App&, CommonOptions&)>& declare) {
  reserve_standard_descriptors();
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is a failed write, reported like any other
  std::signal(SIGXFSZ, SIG_IGN);  // so is a file above the limit of its size
  const std::string program =
      argc > 0 ? std::filesystem::path(argv[0]).filename().string() : "kvconvert";
  try {
    return parse_and_run(argc, argv, program, description, declare);
  } catch (const Error& error) {
    return report(program, error.what(), error.code());
  } catch (const std::filesystem::filesystem_error& error) {  // what() is not for users
    return report(program, fmt::format("{}: {}", error.path1().string(), error.code().message()),
                  ExitCode::kFailed);
  } catch (const std::bad_alloc&) {
    return report(program, kOutOfMemory, ExitCode::kFailed);
  } catch (const std::exception& error) {
    return report(program,
                  means_out_of_memory(error.what()) ? kOutOfMemory : first_line(error.what()),
                  ExitCode::kFailed);
  }
}

}  // namespace kvc
