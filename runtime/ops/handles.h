// What an engine has opened, by number.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace kvc {

template <class Opened>
class Handles {
 public:
  // what: that is opened, for messages
  explicit Handles(const char* what) : what_(what) {}
  std::int64_t add(std::shared_ptr<const Opened> opened) {
    const std::lock_guard lock(mutex_);
    all_.emplace(++last_, std::move(opened));
    return last_;
  }
  // Throws if it is closed.
  std::shared_ptr<const Opened> find(std::int64_t handle) {
    const std::lock_guard lock(mutex_);
    const auto found = all_.find(handle);
    STD_TORCH_CHECK(found != all_.end(), "kvconvert: ", what_, " ", handle, " are closed");
    return found->second;
  }
  void remove(std::int64_t handle) {
    const std::lock_guard lock(mutex_);
    all_.erase(handle);
  }

 private:
  const char* what_;
  std::mutex mutex_;
  std::int64_t last_ = 0;
  std::map<std::int64_t, std::shared_ptr<const Opened>> all_;
};

}  // namespace kvc
