// How OpenMP's threads wait for each other: in loops while the machine is theirs, asleep while others need its cores.
#pragma once

#include <memory>

namespace kvc {

// A libgomp thread that waits turns in a loop for milliseconds before it sleeps. On cores of its own that is the fastest way
// to wait; beside other work it takes the core from the thread that it waits for, and a program takes three times as long.
// libgomp turns only some microseconds while it manages more threads than there are cores. While alive, an object watches how
// long the process's threads wait for a core (Linux: /proc/self/task/*/schedstat), and keeps a team of sleeping threads while
// they do, or always where that cannot be watched. It does nothing for one thread, where OMP_WAIT_POLICY or GOMP_SPINCOUNT is
// set in the environment, and with OpenMP runtimes other than libgomp. A process needs one.
class ThreadWaits {
 public:
  explicit ThreadWaits(int threads);  // those that the program computes with; 0: all
  ~ThreadWaits();
  ThreadWaits(const ThreadWaits&) = delete;
  ThreadWaits& operator=(const ThreadWaits&) = delete;

  bool are_short() const;  // now

  // What decides, from one interval to the next.
  class Choice {
   public:
    // Whether waits shall be short after an interval in which the threads ran on `running` cores and `waiting` threads waited
    // for one, on average.
    bool after(double running, double waiting);

   private:
    bool are_short_ = false;
    int calm_intervals_ = 0;  // since others were last seen
  };

 private:
  class Watch;
  std::unique_ptr<Watch> watch_;  // null: nothing to do
};

}  // namespace kvc
