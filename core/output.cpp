#include "core/output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/file_writer.h"
#include "core/interrupt.h"
#include "core/json.h"
#include "core/progress.h"

namespace kvc {
namespace {

namespace fs = std::filesystem;

fs::path parent_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// True when the working directory is `path` or inside it.
bool holds_working_directory(const fs::path& path) {
  std::error_code error;
  const fs::path outer = fs::canonical(path, error);
  const fs::path inner = error ? fs::path() : fs::current_path(error);
  if (error) {
    return false;
  }
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

// The name, or with the first number behind it that no file has.
fs::path free_name(const std::string& name) {
  fs::path path = name;
  for (int number = 2; fs::exists(fs::symlink_status(path)); ++number) {
    path = name + "-" + std::to_string(number);
  }
  return path;
}

bool is_converted_checkpoint(const fs::path& directory) {
  const fs::path config = directory / "config.json";
  try {
    const Json json = fs::is_regular_file(config) ? read_json(config) : Json();
    return json.is_object() && json.contains("kvconvert") && json["kvconvert"].is_object();
  } catch (const Error&) {  // it cannot be read: not ours
    return false;
  }
}

// By its mark, a conversion by its file, a converted checkpoint by its config.json.
bool is_output(const fs::path& directory) {
  return fs::exists(directory / kOutputMark) || fs::exists(directory / "conversion.h5") ||
         is_converted_checkpoint(directory);
}

fs::path checked_output(const fs::path& given, bool force, bool directory) {
  const fs::path path = output_path(given);
  check_output(path, force);
  const fs::file_status status = fs::symlink_status(path);
  if (fs::exists(status)) {
    KVC_CHECK(directory || !fs::is_directory(status),
              "{}: is a directory; a file cannot replace it", path.string());
    KVC_CHECK(!directory || fs::is_directory(path),
              "{}: exists and is no directory; a directory cannot replace it", path.string());
    KVC_CHECK(!directory || !holds_working_directory(path),
              "{}: holds the working directory and will not be replaced", path.string());
  }
  return path;
}

void sync_tree(const fs::path& directory) {
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(directory)) {
    if (!entry.is_symlink() && (entry.is_regular_file() || entry.is_directory())) {
      sync_path(entry.path(), entry.is_directory());
    }
  }
  sync_path(directory, true);
}

// renameat2(2); false when the file system does not know `flags`.
bool rename_with(const fs::path& from, const fs::path& to, unsigned flags) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) == 0) {
    return true;
  }
  const int error = errno;
  KVC_CHECK(error != EEXIST && error != ENOTEMPTY,
            "{}: appeared while it was being written; --force replaces it", to.string());
  KVC_CHECK(error == EINVAL || error == ENOSYS, "{}: cannot be moved to {}: {}", from.string(),
            to.string(), std::strerror(error));
  return false;
}

void rename_to(const fs::path& from, const fs::path& to) {
  KVC_CHECK(::rename(from.c_str(), to.c_str()) == 0, "{}: cannot be moved to {}: {}", from.string(),
            to.string(), std::strerror(errno));
}

// Moves without replacing anything.
void rename_new(const fs::path& from, const fs::path& to) {
  if (!rename_with(from, to, RENAME_NOREPLACE)) {
    check_output(to, false);
    rename_to(from, to);
  }
}

// Puts the directory `from` in the place of `to`; the old contents are under `from` afterwards.
void exchange(const fs::path& from, const fs::path& to) {
  if (!rename_with(from, to, RENAME_EXCHANGE)) {
    const fs::path aside = from.string() + ".old";
    fs::remove_all(aside);
    rename_to(to, aside);
    rename_to(from, to);
    rename_to(aside, from);
  }
}

}  // namespace

fs::path output_path(const fs::path& path) {
  fs::path normal = path.lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

bool is_within(const fs::path& path, const fs::path& directory) {
  const fs::path relative = fs::weakly_canonical(fs::absolute(path))
                                .lexically_relative(fs::weakly_canonical(fs::absolute(directory)));
  return !relative.empty() && *relative.begin() != "..";
}

void check_apart(const fs::path& output, const fs::path& input, const char* flag) {
  KVC_CHECK(!is_within(output, input) && !is_within(input, output),
            "{}: is, holds or lies within the input {}; choose another {}", output.string(),
            input.string(), flag);
}

void check_output(const fs::path& given, bool force) {
  const fs::path path = output_path(given);
  KVC_CHECK(path.has_filename() && path.filename() != "." && path.filename() != "..",
            "'{}': not a name for an output", given.string());
  KVC_CHECK(fs::is_directory(parent_of(path)), "{}: its parent directory does not exist; create it",
            path.string());
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  KVC_CHECK(fs::status_known(status), "{}: {}", path.string(), error.message());
  KVC_CHECK(force || !fs::exists(status),
            "{}: exists already; choose another output, or --force to replace it", path.string());
  KVC_CHECK(!fs::is_symlink(status) || fs::is_regular_file(path),
            "{}: is a symbolic link; give the directory that it points to, or remove it",
            path.string());
}

OutputDirectory::OutputDirectory(fs::path final_path, bool force)
    : final_(checked_output(final_path, force, true)), scratch_(final_), force_(force) {}

void OutputDirectory::commit() {
  if (!is_output(path())) {
    write_file(path() / kOutputMark, "");
  }
  sync_tree(path());
  check_interrupt();  // the last chance: nothing has appeared yet
  scratch_.make_public();
  const bool replaces = force_ && fs::exists(fs::symlink_status(final_));
  if (replaces && (fs::is_empty(final_) || is_output(final_))) {
    exchange(path(), final_);
    scratch_.adopt_exchanged();
  } else {
    if (replaces) {
      const fs::path aside = free_name(final_.string() + ".replaced");
      rename_to(final_, aside);
      log_warning(fmt::format("{}: held files of something else, which are in {} now",
                              final_.string(), aside.string()));
    }
    rename_new(path(), final_);
    scratch_.release();
  }
  sync_path(parent_of(final_), true);
}

OutputFile::OutputFile(fs::path final_path, bool force)
    : final_(checked_output(final_path, force, false)),
      scratch_(final_),
      partial_(scratch_.path() / final_.filename()),
      force_(force) {}

void OutputFile::commit() {
  sync_path(partial_, false);
  if (force_) {
    rename_to(partial_, final_);
  } else {
    rename_new(partial_, final_);
  }
  sync_path(parent_of(final_), true);
}

void write_file(const fs::path& path, std::string_view bytes) {
  FileWriter file(path);
  file.write(bytes);
  file.finish();
}

std::string read_file(const fs::path& path, std::size_t max_bytes) {
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  KVC_CHECK(file.is_open(), "{}: cannot be opened: {}", path.string(), std::strerror(errno));
  struct stat status {};
  KVC_CHECK(::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode), "{}: not a regular file",
            path.string());
  KVC_CHECK(static_cast<std::uint64_t>(status.st_size) <= max_bytes,
            "{}: {} bytes, at most {} expected", path.string(), status.st_size, max_bytes);
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  std::size_t filled = 0;
  while (filled < text.size()) {
    const ssize_t count = ::read(file.get(), text.data() + filled, text.size() - filled);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    KVC_CHECK(count >= 0, "{}: reading failed: {}", path.string(), std::strerror(errno));
    KVC_CHECK(count > 0, "{}: became shorter while it was read", path.string());
    filled += static_cast<std::size_t>(count);
  }
  return text;
}

void write_file_atomically(const fs::path& path, std::string_view bytes, bool force) {
  OutputFile output(path, force);
  write_file(output.path(), bytes);
  output.commit();
}

}  // namespace kvc
