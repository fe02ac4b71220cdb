#include "convert/stage_pipeline.h"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

namespace kvc {
namespace {

class Pipeline {
 public:
  Pipeline(std::int64_t count, std::int64_t ahead, std::size_t num_stages)
      : count_(count), ahead_(ahead), done_(num_stages + 1, 0) {}

  // Takes all items through stage `stage`, or until something failed.
  void run(std::size_t stage, const StageFunction& function) {
    for (std::int64_t item = 0; item < count_ && may_begin(stage, item); ++item) {
      try {
        function(item);
      } catch (...) {
        return fail(std::current_exception());
      }
      finish(stage);
    }
  }

  void fail(std::exception_ptr failure) {
    const std::lock_guard lock(mutex_);
    if (!failure_) {
      failure_ = std::move(failure);
    }
    changed_.notify_all();
  }

  void rethrow() const {
    if (failure_) {
      std::rethrow_exception(failure_);
    }
  }

 private:
  // Waits for the stage before, or for room; false where something failed.
  bool may_begin(std::size_t stage, std::int64_t item) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] {
      return failure_ || (stage == 0 ? item < done_.back() + ahead_ : item < done_[stage - 1]);
    });
    return !failure_;
  }

  void finish(std::size_t stage) {
    const std::lock_guard lock(mutex_);
    ++done_[stage];
    changed_.notify_all();
  }

  std::int64_t count_, ahead_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::int64_t> done_;  // items that left each stage; the last: `last`
  std::exception_ptr failure_;
};

void run_in_turn(std::int64_t count, const std::vector<StageFunction>& stages,
                 const StageFunction& last) {
  for (std::int64_t item = 0; item < count; ++item) {
    for (const StageFunction& stage : stages) {
      stage(item);
    }
    last(item);
  }
}

}  // namespace

void run_overlapped(std::int64_t count, std::int64_t ahead,
                    const std::vector<StageFunction>& stages, const StageFunction& last) {
  if (ahead <= 1) {
    return run_in_turn(count, stages, last);
  }
  Pipeline pipeline(count, ahead, stages.size());
  {
    std::vector<std::jthread> threads;
    try {
      for (std::size_t stage = 0; stage < stages.size(); ++stage) {
        threads.emplace_back([&, stage] { pipeline.run(stage, stages[stage]); });
      }
    } catch (...) {  // no thread to be had: those that wait for its items end
      pipeline.fail(std::current_exception());
    }
    pipeline.run(stages.size(), last);
  }
  pipeline.rethrow();
}

}  // namespace kvc
