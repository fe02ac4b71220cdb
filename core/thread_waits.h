// How OpenMP's threads share a machine: they wait for each other in loops while it is theirs, and asleep while others need
// its cores.
#pragma once

#include <memory>

namespace kvc {

// A waiting libgomp thread spins for milliseconds before it sleeps. On cores of its own that is the fastest way to wait; beside
// other work it takes the core from the thread that it waits for, and a program takes three times as long. libgomp spins for
// only a few microseconds if it manages more threads than there are cores. While alive, an object watches how
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
    // After an interval in which the threads ran on `running` cores and `waiting` threads waited for one, on average;
    // `new_threads`: some were started in it.
    void after(double running, double waiting, bool new_threads = false);

    bool are_short() const { return are_short_; }
    // Number of cores that other processes use. After this process gives up those cores, it cannot see whether they are still
    // in use. It therefore tries all cores again from time to time, and waits longer after each failed try.
    int cores_of_others() const { return others_; }

   private:
    bool settles(bool new_threads);
    void leave_cores(double waiting);

    // Intervals.
    static constexpr int kSettling = 3, kTrial = 4, kLeastPatience = 10, kMostPatience = 80;
    bool are_short_ = false;
    int since_settling_ = 2 * kSettling;  // since threads were new, or no longer
    int calm_intervals_ = 0;              // since others were last seen
    double waiting_before_ = 0;           // in the interval before
    int others_ = 0, patience_ = kLeastPatience;
    int intervals_ = kTrial;  // since cores were last left to others, or no longer
  };

 private:
  class Watch;
  std::unique_ptr<Watch> watch_;  // null: nothing to do
};

// Cores that others take while this process's threads wait for one, as its ThreadWaits sees it; 0: none, or there is no such.
int cores_of_others();

}  // namespace kvc
