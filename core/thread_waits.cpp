#include "core/thread_waits.h"

#include <omp.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace kvc {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kStackBytes = std::size_t{256} << 10;
constexpr int kMostSleepers = 128;
constexpr std::chrono::milliseconds kInterval(50);
constexpr std::size_t kThreadsPerInterval = 32;  // reading them takes less than a hundredth of it
// Threads that wait for a core. Alone on two cores they are 0.01 to 0.08; beside one busy loop 0.45 and more, however the
// threads wait for each other.
constexpr double kContended = 0.2;
constexpr double kSeveralThreads = 1.1;  // cores: fewer do not show what several threads would meet
constexpr int kCalmIntervals = 2;
// In two intervals running. New threads wait for each other's core in one, 0.2 to 0.5, or in two, 0.3.
constexpr double kLastingly = 0.35;
constexpr double kWaitingBesideOne = 0.5;  // of a thread that shares its core with another

std::atomic<int> others_cores = 0;

// A thread that no signal interrupts, with a small stack: std::thread has those of the process's limit, which count as its
// memory. `body` throws nothing.
class SmallThread {
 public:
  explicit SmallThread(std::function<void()> body) : body_(std::move(body)) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // threads inherit it
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, kStackBytes);
    runs_ = pthread_create(&thread_, &attributes, &SmallThread::start, this) == 0;
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  ~SmallThread() {
    if (runs_) {
      pthread_join(thread_, nullptr);
    }
  }
  SmallThread(const SmallThread&) = delete;
  SmallThread& operator=(const SmallThread&) = delete;

  bool runs() const { return runs_; }

 private:
  static void* start(void* self) {
    static_cast<SmallThread*>(self)->body_();
    return nullptr;
  }

  std::function<void()> body_;
  pthread_t thread_ = {};
  bool runs_ = false;
};

// Set once.
class Event {
 public:
  void set() {
    {
      const std::lock_guard lock(mutex_);
      is_set_ = true;
    }
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_set_; });
  }
  // Whether it is set after at most that time.
  bool wait_for(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, time, [&] { return is_set_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_set_ = false;
};

// libgomp ends the process where it cannot make a thread.
bool can_make_threads(int count) {
  Event made;
  std::array<pthread_t, kMostSleepers + 1> threads;
  const auto wait = [](void* event) -> void* {
    static_cast<Event*>(event)->wait();
    return nullptr;
  };
  int number = 0;
  while (number < count && pthread_create(&threads[number], nullptr, wait, &made) == 0) {
    ++number;
  }
  made.set();
  for (int i = 0; i < number; ++i) {
    pthread_join(threads[i], nullptr);
  }
  return number == count;
}

// More threads than there are cores, all asleep: while alive, libgomp's threads turn in loops only for a moment. They belong to
// a thread of their own, and end with it.
class SleepingTeam {
 public:
  SleepingTeam()
      : owner_([this] {
          const int count = std::min(omp_get_num_procs(), kMostSleepers) + 1;
          if (can_make_threads(count)) {
#pragma omp parallel num_threads(count)
            members_.fetch_add(1);  // an empty region would be left out
          }
          made_.set();
          ended_.wait();
        }) {
    if (owner_.runs()) {
      made_.wait();
    }
  }
  ~SleepingTeam() { ended_.set(); }
  SleepingTeam(const SleepingTeam&) = delete;
  SleepingTeam& operator=(const SleepingTeam&) = delete;

 private:
  Event made_, ended_;
  std::atomic<int> members_ = 0;
  SmallThread owner_;  // last: it uses what stands before it, and is joined first
};

// Sums over all threads of this process, since they were started.
struct ThreadTimes {
  double running_seconds = 0, waiting_seconds = 0;  // on a core, and for one
  std::set<std::string> threads;
};

std::optional<ThreadTimes> thread_times() {
  ThreadTimes sums;
  std::error_code ignored;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", ignored)) {
    double running = 0, waiting = 0;  // nanoseconds
    if (std::ifstream(task.path() / "schedstat") >> running >> waiting) {
      sums.running_seconds += running * 1e-9;
      sums.waiting_seconds += waiting * 1e-9;
      sums.threads.insert(task.path().filename());
    }
  }
  return sums.running_seconds > 0 ? std::optional(sums) : std::nullopt;
}

}  // namespace

class ThreadWaits::Watch {
 public:
  Watch()
      : watcher_([this] {
          try {
            watch();
          } catch (const std::exception&) {  // no memory or no file to read: waits stay as they are
          }
        }) {}
  ~Watch() { ended_.set(); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  bool are_short() const { return are_short_; }

 private:
  void watch() {
    std::optional<ThreadTimes> before = thread_times();
    if (!before) {
      set_short(true);
    }
    Clock::time_point start = Clock::now();
    Choice choice;
    while (before &&
           !ended_.wait_for(kInterval * (1 + before->threads.size() / kThreadsPerInterval))) {
      const std::optional<ThreadTimes> now = thread_times();
      const Clock::time_point end = Clock::now();
      if (now) {
        const double seconds = std::chrono::duration<double>(end - start).count();
        choice.after((now->running_seconds - before->running_seconds) / seconds,
                     (now->waiting_seconds - before->waiting_seconds) / seconds,
                     !std::ranges::includes(before->threads, now->threads));
        set_short(choice.are_short());
        others_cores = choice.cores_of_others();
      }
      before = now;
      start = end;
    }
    others_cores = 0;
  }

  void set_short(bool are_short) {
    if (are_short && !sleepers_) {
      sleepers_.emplace();
    } else if (!are_short) {
      sleepers_.reset();
    }
    are_short_ = are_short;
  }

  Event ended_;
  std::atomic<bool> are_short_ = false;
  std::optional<SleepingTeam> sleepers_;
  SmallThread watcher_;  // last: it uses what stands before it, and is joined first
};

// New threads share a core with the one that started them until the system moves them, for some 100 ms: that is not other work.
// Half of the time counts however often threads are started.
bool ThreadWaits::Choice::settles(bool new_threads) {
  if (new_threads && since_settling_ >= 2 * kSettling) {
    since_settling_ = 0;
  }
  const bool settles = since_settling_ < kSettling;
  since_settling_ = std::min(since_settling_ + 1, 2 * kSettling);
  return settles;
}

void ThreadWaits::Choice::after(double running, double waiting, bool new_threads) {
  if (settles(new_threads) && !are_short_) {
    return;
  }
  if (waiting > kContended) {
    are_short_ = true;
    calm_intervals_ = 0;
  } else if (running > kSeveralThreads && ++calm_intervals_ >= kCalmIntervals) {
    are_short_ = false;
  }
  leave_cores(waiting);
}

void ThreadWaits::Choice::leave_cores(double waiting) {
  const double recent = (waiting + waiting_before_) / 2;
  const bool lasts = recent > kLastingly && std::min(waiting, waiting_before_) > kContended;
  waiting_before_ = waiting;
  ++intervals_;
  if (lasts) {
    if (others_ == 0) {
      patience_ = intervals_ <= kTrial ? std::min(2 * patience_, kMostPatience) : kLeastPatience;
    }
    others_ = std::max({others_, 1, static_cast<int>(std::lround(recent / kWaitingBesideOne))});
    intervals_ = 0;
  } else if (others_ > 0 && intervals_ >= patience_) {
    others_ = 0;
    intervals_ = 0;
  }
}

ThreadWaits::ThreadWaits(int threads) {
  const bool is_users_choice =
      std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr;
  if (!is_users_choice && threads != 1 && omp_get_num_procs() > 1) {
    watch_ = std::make_unique<Watch>();
  }
}

ThreadWaits::~ThreadWaits() = default;

bool ThreadWaits::are_short() const { return watch_ && watch_->are_short(); }

int cores_of_others() { return others_cores; }

}  // namespace kvc
