#include "runtime/reuse/donor_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>

#include "core/file_writer.h"
#include "core/hash.h"
#include "core/progress.h"

namespace kvc {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEnding = ".safetensors";
constexpr const char* kPartial = ".partial";
constexpr std::size_t kNameDigits = 32;

// Held by the one process that writes or removes entries.
class StoreLock {
 public:
  explicit StoreLock(const fs::path& directory) {
    const fs::path path = directory / ".lock";
    file_ = FileDescriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    KVC_CHECK(file_.is_open(), "{}: cannot be opened: {}", path.string(), std::strerror(errno));
    constexpr int kRounds = 600;
    for (int round = 0; ::flock(file_.get(), LOCK_EX | LOCK_NB) != 0; ++round) {
      KVC_CHECK(round < kRounds, "{}: held by another process for too long", path.string());
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }

 private:
  FileDescriptor file_;  // closing it unlocks
};

struct StoredFile {
  fs::path path;
  std::int64_t bytes = 0;
  fs::file_time_type used;
};

// Entries that vanish while the directory is read are left out.
std::vector<StoredFile> files_with(const fs::path& directory, const char* ending) {
  std::vector<StoredFile> files;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() != ending) {
      continue;
    }
    std::error_code gone;
    const auto bytes = static_cast<std::int64_t>(entry->file_size(gone));
    const fs::file_time_type used = gone ? fs::file_time_type{} : entry->last_write_time(gone);
    if (!gone) {
      files.push_back({entry->path(), bytes, used});
    }
  }
  return files;
}

// True for entries and those that are being written; the store removes no other files of its directory.
bool has_entry_name(const StoredFile& file) {
  const std::string name = file.path.stem().string();
  return name.size() == kNameDigits &&
         name.find_first_not_of("0123456789abcdef") == std::string::npos;
}

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// The header and the manifest of the file have a line for every tensor.
std::int64_t most_bytes(const DonorPrompt& prompt) {
  constexpr std::int64_t kBytesPerLine = 256, kOtherLines = 4;
  return kv_bytes(prompt) + 4 * prompt.num_tokens() + 4 * prompt.mean_embedding.numel() +
         kBytesPerLine * (kOtherLines + 2 * static_cast<std::int64_t>(prompt.key.size()));
}

double cosine(const at::Tensor& a, const at::Tensor& b) {
  const double norms = a.norm().item<double>() * b.norm().item<double>();
  return norms > 0 ? at::dot(a, b).item<double>() / norms : 0;
}

}  // namespace

DonorStore::DonorStore(fs::path directory, DonorFormat format, std::int64_t limit)
    : directory_(std::move(directory)), format_(std::move(format)), limit_(limit) {
  const bool created = ::mkdir(directory_.c_str(), 0700) == 0;
  KVC_CHECK(created || errno == EEXIST, "{}: donor store cannot be created: {}",
            directory_.string(), std::strerror(errno));
  KVC_CHECK(fs::is_directory(directory_), "{}: not a directory, expected a donor store",
            directory_.string());
}

// Prompts of one model have names of their own: two processes that store the same one write the same file.
std::string DonorStore::name_of(const std::vector<std::int64_t>& ids) const {
  Sha256 hash;
  hash.update(format_.binding);
  hash.update(std::as_bytes(std::span(ids)));
  return hash.hex().substr(0, kNameDigits);
}

void DonorStore::pass_over(const std::string& name, const std::string& reason) {
  heads_.erase(name);
  if (passed_over_.insert(name).second) {
    log_warning(fmt::format("donor skipped: {}", reason));
  }
}

// Entries that came and went since.
void DonorStore::refresh() {
  std::set<std::string> there;
  for (const StoredFile& file : files_with(directory_, kEnding)) {
    const std::string name = file.path.stem().string();
    there.insert(name);
    if (heads_.count(name) != 0 || passed_over_.count(name) != 0) {
      continue;
    }
    try {
      heads_.emplace(name, read_donor_head(file.path, format_));
    } catch (const ForeignDonor& foreign) {
      passed_over_.insert(name);
      if (!std::exchange(warned_of_foreign_, true)) {
        log_warning(
            fmt::format("donor skipped: {}; further ones are not reported", foreign.what()));
      }
    } catch (const std::exception& error) {
      if (is_there(file.path)) {
        pass_over(name, error.what());
      }
    }
  }
  std::erase_if(heads_, [&](const auto& head) { return there.count(head.first) == 0; });
  std::erase_if(passed_over_, [&](const std::string& name) { return there.count(name) == 0; });
}

std::vector<DonorStore::Candidate> DonorStore::nearest(const at::Tensor& mean_embedding,
                                                       std::int64_t count) {
  refresh();
  std::vector<std::pair<double, Candidate>> all;
  for (const auto& [name, head] : heads_) {
    all.emplace_back(cosine(head.mean_embedding, mean_embedding), Candidate{name, &head});
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<Candidate> best;
  for (std::size_t i = 0; i < all.size() && static_cast<std::int64_t>(i) < count; ++i) {
    best.push_back(all[i].second);
  }
  return best;
}

std::optional<Donor> DonorStore::open(const std::string& name) {
  const fs::path path = directory_ / (name + kEnding);
  try {
    Donor donor(path, format_);
    ::utimensat(AT_FDCWD, path.c_str(), nullptr, 0);  // a store that cannot be written has no order
    return donor;
  } catch (const std::exception& error) {
    if (is_there(path)) {
      pass_over(name, error.what());
    }
    return std::nullopt;
  }
}

void DonorStore::store(const DonorPrompt& prompt) {
  const std::string name = name_of(prompt.ids);
  try {
    const StoreLock lock(directory_);
    if (!is_there(directory_ / (name + kEnding)) || passed_over_.count(name) != 0) {
      write(name, prompt);
    }
  } catch (const std::exception& error) {
    log_warning(fmt::format("this prompt is not stored as a donor: {}", error.what()));
  }
}

// Under the lock: what else is partial was left by a process that ended.
void DonorStore::write(const std::string& name, const DonorPrompt& prompt) {
  for (const StoredFile& left : files_with(directory_, kPartial)) {
    if (has_entry_name(left)) {
      fs::remove(left.path);
    }
  }
  const std::int64_t bytes = most_bytes(prompt);
  KVC_CHECK(bytes <= limit_, "it takes {} bytes, the store is limited to {}; raise size in --reuse",
            bytes, limit_);
  const fs::path partial = directory_ / (name + kPartial);
  make_room(bytes);
  write_donor(partial, format_, prompt);
  fs::permissions(partial, fs::perms::owner_read | fs::perms::owner_write);
  fs::rename(partial, directory_ / (name + kEnding));
  sync_path(directory_, /*is_directory=*/true);
  passed_over_.erase(name);
}

// Removes entries until `bytes` more fit.
void DonorStore::make_room(std::int64_t bytes) const {
  std::vector<StoredFile> files = files_with(directory_, kEnding);
  std::erase_if(files, [](const StoredFile& file) { return !has_entry_name(file); });
  std::sort(files.begin(), files.end(),
            [](const StoredFile& a, const StoredFile& b) { return a.used < b.used; });
  std::int64_t total = bytes;
  for (const StoredFile& file : files) {
    total += file.bytes;
  }
  for (const StoredFile& file : files) {
    if (total <= limit_) {
      return;
    }
    fs::remove(file.path);
    total -= file.bytes;
  }
}

}  // namespace kvc
