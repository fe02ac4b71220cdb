#include "core/thread_waits.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

namespace kvc {
namespace {

std::ptrdiff_t threads_of_process() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
}

// Whether the process comes to that many: a thread that was joined is listed a moment longer.
bool comes_to(std::ptrdiff_t threads) {
  for (int i = 0; i < 3000 && threads_of_process() != threads; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return threads_of_process() == threads;
}

// The variables that a user may have set, without them while alive.
class NoChoiceOfUser {
 public:
  NoChoiceOfUser() {
    if (const char* policy = std::getenv("OMP_WAIT_POLICY")) {
      policy_ = policy;
    }
    unsetenv("OMP_WAIT_POLICY");
    unsetenv("GOMP_SPINCOUNT");
  }
  ~NoChoiceOfUser() {
    unsetenv("GOMP_SPINCOUNT");
    if (!policy_.empty()) {
      setenv("OMP_WAIT_POLICY", policy_.c_str(), 1);
    }
  }

 private:
  std::string policy_;
};

bool are_short_after(ThreadWaits::Choice& choice, double running, double waiting) {
  choice.after(running, waiting);
  return choice.are_short();
}

TEST(ThreadWaits, AreShortFromTheFirstIntervalBesideOthers) {
  ThreadWaits::Choice choice;
  EXPECT_FALSE(are_short_after(choice, 1.0, 0.0));
  EXPECT_FALSE(are_short_after(choice, 1.9, 0.08));
  EXPECT_TRUE(are_short_after(choice, 1.5, 0.45));
}

TEST(ThreadWaits, StayShortUntilSeveralThreadsRanWithoutWaitingForACore) {
  ThreadWaits::Choice choice;
  EXPECT_TRUE(are_short_after(choice, 1.5, 0.45));
  EXPECT_TRUE(are_short_after(choice, 1.0, 0.0)) << "one thread shows nothing";
  EXPECT_TRUE(are_short_after(choice, 1.0, 0.0));
  EXPECT_TRUE(are_short_after(choice, 1.9, 0.02)) << "once may be luck";
  EXPECT_TRUE(are_short_after(choice, 1.5, 0.45));
  EXPECT_TRUE(are_short_after(choice, 1.9, 0.02)) << "counted anew";
  EXPECT_FALSE(are_short_after(choice, 1.9, 0.02));
  EXPECT_FALSE(are_short_after(choice, 1.0, 0.0));
}

// Intervals until waits are short, beside a loop, while threads are started in every interval in which `starts` says so.
int intervals_until_short(const std::function<bool(int)>& starts) {
  ThreadWaits::Choice choice;
  int interval = 0;
  while (!choice.are_short() && interval < 1000) {
    choice.after(1.5, 0.45, starts(interval));
    ++interval;
  }
  return interval;
}

TEST(ThreadWaits, AreNotShortBecauseOfNewThreads) {
  EXPECT_EQ(intervals_until_short([](int) { return false; }), 1);
  EXPECT_EQ(intervals_until_short([](int interval) { return interval == 0; }), 4)
      << "three intervals to settle";
  EXPECT_EQ(intervals_until_short([](int) { return true; }), 4)
      << "others are seen however often threads are started";
  ThreadWaits::Choice choice;
  // Alone: new threads every ten intervals, which wait for each other's core in three.
  for (int i = 0; i < 100; ++i) {
    choice.after(1.9, i % 10 < 3 ? 0.45 : 0.02, i % 10 == 0);
    EXPECT_FALSE(choice.are_short()) << i;
  }
  choice.after(1.5, 0.45);
  EXPECT_TRUE(choice.are_short());
  choice.after(1.5, 0.45, true);
  choice.after(1.9, 0.02, true);
  EXPECT_TRUE(choice.are_short()) << "its own sleeping threads are new too";
}

TEST(ThreadWaits, LeaveOneCoreToEveryOtherThreadThatStays) {
  ThreadWaits::Choice choice;
  for (const double waiting : {0.08, 0.48, 0.14, 0.24, 0.28, 0.02}) {  // new threads
    choice.after(1.9, waiting);
    EXPECT_EQ(choice.cores_of_others(), 0);
  }
  choice.after(1.5, 0.5);
  EXPECT_EQ(choice.cores_of_others(), 0);
  choice.after(1.5, 0.4);
  EXPECT_EQ(choice.cores_of_others(), 1);
  choice.after(14.0, 2.6);
  EXPECT_EQ(choice.cores_of_others(), 3);
  choice.after(14.0, 0.5);
  EXPECT_EQ(choice.cores_of_others(), 3) << "those that are left do not show";
}

// Intervals until all cores are tried again, beside one loop that a trial meets at once.
int intervals_left_alone(ThreadWaits::Choice& choice) {
  choice.after(1.5, 0.5);
  choice.after(1.5, 0.5);
  int intervals = 0;
  while (choice.cores_of_others() > 0 && intervals < 1000) {
    choice.after(1.0, 0.05);
    ++intervals;
  }
  return intervals;
}

TEST(ThreadWaits, TryAllCoresAgainTheLaterTheMoreOftenItWasInVain) {
  ThreadWaits::Choice choice;
  std::vector<int> intervals;
  for (int i = 0; i < 6; ++i) {
    intervals.push_back(intervals_left_alone(choice));
  }
  EXPECT_EQ(intervals, (std::vector{10, 20, 40, 80, 80, 80}));
  for (int i = 0; i < 10; ++i) {  // the loop has ended
    choice.after(1.9, 0.05);
  }
  EXPECT_EQ(intervals_left_alone(choice), 10);
}

// Twice as many threads as there are cores, all computing while alive.
class Crowd {
 public:
  Crowd() {
    for (int i = 0; i < 2 * omp_get_num_procs(); ++i) {
      threads_.emplace_back([this] {
        while (!ended_) {
        }
      });
    }
  }
  ~Crowd() {
    ended_ = true;
    for (std::thread& thread : threads_) {
      thread.join();
    }
  }
  std::ptrdiff_t size() const { return static_cast<std::ptrdiff_t>(threads_.size()); }

 private:
  std::atomic<bool> ended_ = false;
  std::vector<std::thread> threads_;
};

TEST(ThreadWaits, KeepMoreThreadsThanCoresAsleepInACrowdAndEndThem) {
  if (omp_get_num_procs() == 1) {
    GTEST_SKIP() << "one core: threads never wait in loops";
  }
  const NoChoiceOfUser none;
  const std::ptrdiff_t before = threads_of_process();
  for (int turn = 0; turn < 3; ++turn) {
    {
      const ThreadWaits waits(0);
      EXPECT_TRUE(comes_to(before + 1)) << "the one that watches";
      const Crowd crowd;
      for (int i = 0; i < 3000 && (!waits.are_short() || cores_of_others() == 0); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
      ASSERT_TRUE(waits.are_short());
      EXPECT_GE(cores_of_others(), 1);
      // The owner of a team, and as many more threads as there are cores.
      EXPECT_TRUE(comes_to(before + crowd.size() + 2 + omp_get_num_procs()));
    }
    EXPECT_TRUE(comes_to(before));
    EXPECT_EQ(cores_of_others(), 0);
  }
}

TEST(ThreadWaits, AreLeftToTheUserAndToSingleThreads) {
  const NoChoiceOfUser none;
  const std::ptrdiff_t before = threads_of_process();
  EXPECT_FALSE(ThreadWaits(1).are_short());
  for (const char* variable : {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}) {
    setenv(variable, "1", 1);
    const ThreadWaits waits(0);
    EXPECT_FALSE(waits.are_short()) << variable;
    EXPECT_EQ(threads_of_process(), before) << variable;
    unsetenv(variable);
  }
}

}  // namespace
}  // namespace kvc
