// Progress on stderr: a redrawn line on a terminal, a line every ten seconds otherwise, nothing when
// quiet. Messages go through here too, so they never tear a progress line.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvc {

enum class LogLevel { kError, kWarning, kInfo, kDebug };

void set_log_level(LogLevel level);       // --quiet is kError
void log_info(std::string_view message);  // stderr, ends with a newline
// Once per process and message: for findings that every stage repeats.
void log_info_once(std::string_view message);
void log_warning(std::string_view message);
void log_warning_once(std::string_view message);
void log_debug(std::string_view message);

// A message on one line of bounded length, whatever file it quotes: control characters as \n or \x01, and a long middle
// as "...".
std::string one_line(std::string_view message);

// Wall time.
inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Counts steps of one stage; also checks for interruption.
class Progress {
 public:
  Progress(std::string label, std::int64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void advance(std::int64_t steps = 1);  // calls check_interrupt()

 private:
  void draw(bool last);
  std::string label_;
  std::int64_t total_, done_ = 0, drawn_steps_ = -1;
  std::chrono::steady_clock::time_point start_, drawn_;
};

}  // namespace kvc
