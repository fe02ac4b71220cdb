#include "validate/task_results.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/output.h"

namespace kvc {
namespace {

constexpr std::size_t kMostBytes = std::size_t{4} << 30;

std::string line_text(const Json& line) {
  return line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string contents(int file, const std::string& name) {
  std::string text;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t count = ::read(file, buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) {
      continue;
    }
    KVC_CHECK(count >= 0 && text.size() < kMostBytes, "{}: cannot be read: {}", name,
              count < 0 ? std::strerror(errno) : "too large");
    if (count == 0) {
      return text;
    }
    text.append(buffer, static_cast<std::size_t>(count));
  }
}

struct LeftLines {
  std::vector<Json> lines;
  std::vector<std::size_t> ends;  // bytes of the file up to the end of each
};

// The complete lines; nothing if one is no object or of another run.
std::optional<LeftLines> lines_of_run(const std::string& text, const std::string& run) {
  LeftLines left;
  for (std::size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    Json line;
    try {
      line = parse_json(std::string_view(text).substr(begin, end - begin), "line");
    } catch (const Error&) {
      return std::nullopt;
    }
    if (!line.is_object() || line.value("run", Json()) != run) {
      return std::nullopt;
    }
    left.lines.push_back(std::move(line));
    left.ends.push_back(end + 1);
  }
  return left;
}

}  // namespace

TaskResults::TaskResults(std::filesystem::path path, std::string run, bool force)
    : path_(path.empty() ? path : output_path(path)), run_(std::move(run)), force_(force) {
  if (path_.empty()) {
    return;
  }
  check_output(path_, force);
  partial_ = path_.parent_path() / fmt::format(".{}.partial", path_.filename().string());
  file_ = FileDescriptor(
      ::open(partial_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0666));
  KVC_CHECK(file_.is_open(), "{}: cannot be opened: {}", partial_.string(), std::strerror(errno));
  KVC_CHECK(::flock(file_.get(), LOCK_EX | LOCK_NB) == 0,
            "{}: another process is writing this output; wait for it or choose another "
            "--task-results",
            partial_.string());
  KVC_CHECK(file_.is_named(partial_), "{}: another process has just finished this output",
            partial_.string());
  read_left(force);
}

void TaskResults::read_left(bool force) {
  std::optional<LeftLines> left = lines_of_run(contents(file_.get(), partial_.string()), run_);
  KVC_CHECK(left || force,
            "{}: left by an interrupted run with other checkpoints, options, texts or version; "
            "repeat that run to continue it, or start anew with --force",
            partial_.string());
  if (left) {
    lines_ = std::move(left->lines);
    ends_ = std::move(left->ends);
  }
  keep_first(lines_.size());
}

TaskResults::~TaskResults() {
  if (file_.is_open() && lines_.empty()) {
    ::unlink(partial_.c_str());
  }
}

void TaskResults::keep_first(std::size_t count) {
  lines_.resize(count);
  ends_.resize(count);
  if (file_.is_open()) {
    const std::size_t bytes = count == 0 ? 0 : ends_.back();
    KVC_CHECK(::ftruncate(file_.get(), static_cast<off_t>(bytes)) == 0, "{}: cannot be cut: {}",
              partial_.string(), std::strerror(errno));
  }
}

void TaskResults::append(const std::vector<Json>& lines) {
  std::string text;
  const std::size_t before = ends_.empty() ? 0 : ends_.back();
  for (const Json& line : lines) {
    text += line_text(line);
    lines_.push_back(line);
    ends_.push_back(before + text.size());
  }
  if (file_.is_open()) {
    write_at_end(text);
  }
}

void TaskResults::write_at_end(const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t count = ::write(file_.get(), text.data() + done, text.size() - done);
    KVC_CHECK(count >= 0 || errno == EINTR, "{}: cannot be written: {}", partial_.string(),
              std::strerror(errno));
    done += count > 0 ? static_cast<std::size_t>(count) : 0;
  }
  KVC_CHECK(::fsync(file_.get()) == 0, "{}: cannot be written: {}", partial_.string(),
            std::strerror(errno));
}

void TaskResults::commit() {
  if (!file_.is_open()) {
    return;
  }
  check_output(path_, force_);
  KVC_CHECK(::rename(partial_.c_str(), path_.c_str()) == 0, "{}: cannot be renamed to {}: {}",
            partial_.string(), path_.string(), std::strerror(errno));
  file_ = FileDescriptor();
  sync_path(path_.parent_path().empty() ? std::filesystem::path(".") : path_.parent_path(), true);
}

}  // namespace kvc
