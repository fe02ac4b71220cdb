// Loops over independent pieces on ATen's threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace kvc {

// Numbers copied or converted per thread; for fewer, threads cost more than they save.
inline constexpr std::int64_t kNumbersPerThread = std::int64_t{1} << 15;

// body(begin, end) over pieces of [0, count), at most one per thread. Pieces run in order of their
// beginnings where there is one thread. ATen's products inside a body use one thread.
void parallel_pieces(std::int64_t count, std::int64_t grain,
                     const std::function<void(std::int64_t, std::int64_t)>& body);

// The same over chunks of `chunk`, which threads take as they finish others: if cores differ in
// speed, none waits for the slowest one's share.
void parallel_chunks(std::int64_t count, std::int64_t chunk,
                     const std::function<void(std::int64_t, std::int64_t)>& body);

// The same over pieces of the rest, at least `smallest` and, except the last, multiples of it: large ones first, which
// read memory in long runs, and small ones at the end, so no thread waits long.
void parallel_shares(std::int64_t count, std::int64_t smallest,
                     const std::function<void(std::int64_t, std::int64_t)>& body);

// Threads that work is cut for where results follow from the cut: ATen's, also while FewerThreads leave some of them out.
int planned_threads();

// While alive, ATen's loops of the calling thread run on `count` threads, or on those that they had if these are fewer.
class FewerThreads {
 public:
  explicit FewerThreads(int count);
  ~FewerThreads();
  FewerThreads(const FewerThreads&) = delete;
  FewerThreads& operator=(const FewerThreads&) = delete;

 private:
  int before_, planned_before_;
};

// While alive, ATen's loops of the calling thread run on planned_threads() again: for work of others whose results depend on
// the number of threads. Does nothing within a loop.
class AllThreads {
 public:
  AllThreads();
  ~AllThreads();
  AllThreads(const AllThreads&) = delete;
  AllThreads& operator=(const AllThreads&) = delete;

 private:
  int before_;
};

// Runs phases one after the other on at most `max_threads` threads: each thread calls body(thread, threads) of
// every phase after all threads finished the one before. Cheaper than one loop per phase. Results must not depend
// on the number of threads.
using Phase = std::function<void(std::int64_t thread, std::int64_t threads)>;
void parallel_phases(std::int64_t max_threads, const std::vector<Phase>& phases);

// Copies by all threads: pages of a mapped file and of new memory are mapped one by one as they are touched, which takes longer
// than the copy.
void copy_in_parallel(void* to, const void* from, std::size_t bytes);

}  // namespace kvc
