#include "core/thread_waits.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <string>

namespace kvc {
namespace {

std::ptrdiff_t threads_of_process() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
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

TEST(ThreadWaits, AreShortUntilSeveralThreadsRanWithoutWaitingForACore) {
  ThreadWaits::Choice choice;
  EXPECT_TRUE(choice.after(1.0, 0.0)) << "one thread shows nothing";
  EXPECT_TRUE(choice.after(1.0, 0.0));
  EXPECT_TRUE(choice.after(1.9, 0.02)) << "once may be luck";
  EXPECT_FALSE(choice.after(1.9, 0.08));
  EXPECT_FALSE(choice.after(1.0, 0.0));
}

TEST(ThreadWaits, AreShortFromTheFirstIntervalBesideOthers) {
  ThreadWaits::Choice choice;
  choice.after(1.9, 0.02);
  EXPECT_FALSE(choice.after(1.9, 0.02));
  EXPECT_TRUE(choice.after(1.5, 0.45));
  EXPECT_TRUE(choice.after(1.9, 0.02));
  EXPECT_TRUE(choice.after(1.5, 0.45));
  EXPECT_TRUE(choice.after(1.9, 0.02)) << "counted anew";
  EXPECT_FALSE(choice.after(1.9, 0.02));
}

TEST(ThreadWaits, KeepMoreThreadsThanCoresAsleepAndEndThem) {
  if (omp_get_num_procs() == 1) {
    GTEST_SKIP() << "one core: threads never wait in loops";
  }
  const NoChoiceOfUser none;
  const std::ptrdiff_t before = threads_of_process();
  for (int turn = 0; turn < 3; ++turn) {
    {
      const ThreadWaits waits(0);
      EXPECT_TRUE(waits.are_short());
      // The watching thread and the owner of a team of one more than there are cores.
      EXPECT_EQ(threads_of_process(), before + 2 + omp_get_num_procs());
    }
    EXPECT_EQ(threads_of_process(), before);
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
