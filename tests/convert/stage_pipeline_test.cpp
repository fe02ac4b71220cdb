#include "convert/stage_pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <latch>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>

namespace kvc {
namespace {

// What happened, in order.
class Diary {
 public:
  void note(const std::string& what) {
    const std::lock_guard lock(mutex_);
    lines_.push_back(what);
  }
  std::vector<std::string> of(char stage) const {
    std::vector<std::string> own;
    std::copy_if(lines_.begin(), lines_.end(), std::back_inserter(own),
                 [&](const std::string& line) { return line.front() == stage; });
    return own;
  }
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

std::string line_of(char stage, std::int64_t item) {
  std::string line(1, stage);
  line += std::to_string(item);
  return line;
}

StageFunction noting(Diary& diary, char stage) {
  return [&diary, stage](std::int64_t item) { diary.note(line_of(stage, item)); };
}

TEST(StagePipeline, RunsInTurnWithoutRoomAhead) {
  Diary diary;
  run_overlapped(3, 1, {noting(diary, 'a'), noting(diary, 'b')}, noting(diary, 'z'));
  EXPECT_EQ(diary.lines(),
            (std::vector<std::string>{"a0", "b0", "z0", "a1", "b1", "z1", "a2", "b2", "z2"}));
}

TEST(StagePipeline, KeepsTheOrderOfItemsAndOfStages) {
  Diary diary;
  run_overlapped(20, 3, {noting(diary, 'a'), noting(diary, 'b')}, noting(diary, 'z'));
  for (const char stage : {'a', 'b', 'z'}) {
    std::vector<std::string> expected;
    for (int item = 0; item < 20; ++item) {
      expected.push_back(line_of(stage, item));
    }
    EXPECT_EQ(diary.of(stage), expected);
  }
  const auto& lines = diary.lines();
  const auto place = [&](char stage, int item) {
    return std::find(lines.begin(), lines.end(), line_of(stage, item)) - lines.begin();
  };
  for (int item = 0; item < 20; ++item) {
    EXPECT_LT(place('a', item), place('b', item));
    EXPECT_LT(place('b', item), place('z', item));
  }
}

// Would wait for ever if the second item began only when the first has left.
TEST(StagePipeline, OverlapsStages) {
  std::latch second_begun(1);
  run_overlapped(2, 2,
                 {[&](std::int64_t item) {
                    if (item == 1) {
                      second_begun.count_down();
                    }
                  },
                  [&](std::int64_t item) {
                    if (item == 0) {
                      second_begun.wait();
                    }
                  }},
                 [](std::int64_t) {});
}

TEST(StagePipeline, BoundsWhatIsUnderWay) {
  std::atomic<int> held = 0, most = 0;
  run_overlapped(30, 3,
                 {[&](std::int64_t) { most = std::max<int>(most, ++held); }, [](std::int64_t) {}},
                 [&](std::int64_t) {
                   std::this_thread::yield();
                   --held;
                 });
  EXPECT_EQ(held, 0);
  EXPECT_LE(most, 3);
}

TEST(StagePipeline, RunsTheLastStepOnTheCallersThread) {
  const auto caller = std::this_thread::get_id();
  run_overlapped(4, 2, {[&](std::int64_t) { EXPECT_NE(std::this_thread::get_id(), caller); }},
                 [&](std::int64_t) { EXPECT_EQ(std::this_thread::get_id(), caller); });
}

TEST(StagePipeline, ThrowsTheFirstErrorOfAnyStage) {
  for (int failing = 0; failing < 3; ++failing) {
    std::vector<StageFunction> all;
    for (int stage = 0; stage < 3; ++stage) {
      all.emplace_back([stage, failing](std::int64_t item) {
        if (stage == failing && item == 5) {
          throw std::runtime_error(std::to_string(stage));
        }
      });
    }
    for (const std::int64_t ahead : {1, 3}) {
      try {
        run_overlapped(10, ahead, {all[0], all[1]}, all[2]);
        FAIL() << "nothing was thrown";
      } catch (const std::runtime_error& error) {
        EXPECT_EQ(error.what(), std::to_string(failing));
      }
    }
  }
}

TEST(StagePipeline, DoesNothingWithoutItems) {
  Diary diary;
  run_overlapped(0, 3, {noting(diary, 'a')}, noting(diary, 'z'));
  EXPECT_TRUE(diary.lines().empty());
}

}  // namespace
}  // namespace kvc
