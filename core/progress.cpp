#include "core/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <mutex>
#include <set>

#include <iterator>
#include "core/interrupt.h"

namespace kvc {
namespace {

using std::chrono::steady_clock;

constexpr auto kTerminalInterval = std::chrono::milliseconds(100);
constexpr auto kLineInterval = std::chrono::seconds(10);

// Standard error is one per process, and so is what has been drawn on it.
struct Console {
  std::mutex mutex;
  LogLevel level = LogLevel::kInfo;
  bool line_open = false;  // a progress line without its newline is on the terminal
  std::set<std::string, std::less<>> said_once;
};

Console& console() {
  static Console instance;
  return instance;
}

bool is_terminal() {
  static const bool terminal = isatty(STDERR_FILENO) == 1;
  return terminal;
}

std::size_t terminal_width() {
  winsize size = {};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1u : 79u;
}

// Failing to report must not fail the work: results of these writes are ignored.
void write_stderr(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

// Escapes what a terminal would obey (C0, DEL and, in UTF-8, C1) as \x1b. A newline stays, or becomes \n.
std::string harmless(std::string_view message, bool is_one_line) {
  std::string text;
  for (std::size_t i = 0; i < message.size(); ++i) {
    const auto c = static_cast<unsigned char>(message[i]);
    const auto next = static_cast<unsigned char>(i + 1 < message.size() ? message[i + 1] : '\0');
    const bool is_c1 = c == 0xc2 && next >= 0x80 && next < 0xa0;
    if (c == '\n') {
      text += is_one_line ? "\\n" : "\n";
    } else if (c < 0x20 || c == 0x7f) {
      fmt::format_to(std::back_inserter(text), "\\x{:02x}", c);
    } else if (is_c1) {
      fmt::format_to(std::back_inserter(text), "\\x{:02x}",
                     static_cast<unsigned char>(message[++i]));
    } else {
      text += message[i];
    }
  }
  return text;
}

void log(LogLevel level, std::string_view prefix, std::string_view message) {
  const std::lock_guard lock(console().mutex);
  if (console().level < level) {
    return;
  }
  write_stderr(fmt::format("{}{}{}\n", console().line_open ? "\r\033[K" : "", prefix,
                           harmless(message, false)));
  console().line_open = false;
}

bool is_first(std::string_view message) {
  const std::lock_guard lock(console().mutex);
  return console().said_once.emplace(message).second;
}

std::string clock_text(double seconds) {
  const auto total = static_cast<std::int64_t>(seconds);
  return total < 3600 ? fmt::format("{}:{:02}", total / 60, total % 60)
                      : fmt::format("{}:{:02}:{:02}", total / 3600, total / 60 % 60, total % 60);
}

}  // namespace

void set_log_level(LogLevel level) {
  const std::lock_guard lock(console().mutex);
  console().level = level;
}

void log_info(std::string_view message) { log(LogLevel::kInfo, "", message); }

void log_info_once(std::string_view message) {
  if (is_first(message)) {
    log_info(message);
  }
}

void log_warning(std::string_view message) { log(LogLevel::kWarning, "warning: ", message); }

void log_warning_once(std::string_view message) {
  if (is_first(message)) {
    log_warning(message);
  }
}

void log_debug(std::string_view message) { log(LogLevel::kDebug, "debug: ", message); }

Progress::Progress(std::string label, std::int64_t total)
    : label_(std::move(label)), total_(total), start_(steady_clock::now()), drawn_(start_) {}

Progress::~Progress() {
  if (drawn_steps_ >= 0 && (is_terminal() || drawn_steps_ != done_)) {
    draw(true);
  }
}

void Progress::advance(std::int64_t steps) {
  check_interrupt();
  done_ += steps;
  if (steady_clock::now() - drawn_ >= (is_terminal() ? kTerminalInterval : kLineInterval)) {
    draw(false);
  }
}

void Progress::draw(bool last) {
  const std::lock_guard lock(console().mutex);
  if (console().level < LogLevel::kInfo) {
    return;
  }
  drawn_ = steady_clock::now();
  drawn_steps_ = done_;
  const double elapsed = std::chrono::duration<double>(drawn_ - start_).count();
  std::string line = fmt::format("{}: {}/{}", label_, done_, total_);
  if (total_ > 0) {
    line += fmt::format(" ({} %)", 100 * std::min(done_, total_) / total_);
  }
  line += fmt::format(", {}", clock_text(elapsed));
  if (done_ > 0 && done_ < total_) {
    const double left = elapsed * static_cast<double>(total_ - done_) / static_cast<double>(done_);
    line += fmt::format(", {} left", clock_text(left));
  }
  if (!is_terminal()) {
    write_stderr(line + "\n");
    return;
  }
  write_stderr(fmt::format("\r\033[K{}{}", line.substr(0, terminal_width()), last ? "\n" : ""));
  console().line_open = !last;
}

std::string one_line(std::string_view message) {
  constexpr std::size_t kMaxLength = 4000, kEnd = 1000;
  std::string line = harmless(message, true);
  if (line.size() > kMaxLength) {
    line.replace(kMaxLength - kEnd, line.size() - kMaxLength, "...");
  }
  return line;
}

}  // namespace kvc
