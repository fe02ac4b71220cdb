// The emulator itself: that it does what a GPU does, and shows what a GPU may hide.
#include "tests/runtime/kernels/cuda/emulated_thread.h"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <vector>

namespace kvc::testing {
namespace {

constexpr int kRows = 16, kColumns = 8, kInner = 16;

TEST(EmulatedThread, ProductOfLoadedMatricesIsTheProduct) {
  // a [16, 16] and b transposed [8, 16], row by row.
  std::uint16_t numbers[(kRows + kColumns) * kInner];
  float expected[kRows][kColumns] = {}, actual[kRows][kColumns];
  for (int i = 0; i < (kRows + kColumns) * kInner; ++i) {
    numbers[i] = narrow_bits(Float16{}, static_cast<float>(i * 7 % 13 - 6));
  }
  for (int row = 0; row < kRows; ++row) {
    for (int column = 0; column < kColumns; ++column) {
      for (int k = 0; k < kInner; ++k) {
        expected[row][column] += to_float(Float16{numbers[row * kInner + k]}) *
                                 to_float(Float16{numbers[(kRows + column) * kInner + k]});
      }
    }
  }
  run_grid({}, 32, sizeof(numbers), ThreadOrder::kForward, [&](EmulatedThread& thread) {
    auto* shared = reinterpret_cast<std::uint16_t*>(thread.shared());
    for (int i = thread.index(); i < (kRows + kColumns) * kInner; i += 32) {
      shared[i] = numbers[i];
    }
    thread.sync();
    const int lane = thread.lane();
    std::uint32_t a[4], b[4];
    thread.load_matrices(a, shared + (lane % 8 + 8 * (lane / 8 % 2)) * kInner + 8 * (lane / 16));
    thread.load_matrices(b, shared + (kRows + lane % 8) * kInner + 8 * (lane / 8 % 2));
    const std::uint32_t right[2] = {b[0], b[1]};
    float c[4] = {};
    thread.multiply_add(Float16{}, c, a, right);
    for (int i = 0; i < 4; ++i) {
      actual[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2] = c[i];
    }
  });
  for (int row = 0; row < kRows; ++row) {
    for (int column = 0; column < kColumns; ++column) {
      EXPECT_EQ(actual[row][column], expected[row][column]);
    }
  }
}

TEST(EmulatedThread, TransposeMovesWhatATransposedLoadReads) {
  run_grid({}, 32, 512, ThreadOrder::kBackward, [&](EmulatedThread& thread) {
    auto* shared = reinterpret_cast<std::uint16_t*>(thread.shared());
    for (int i = 0; i < 8; ++i) {
      shared[8 * thread.lane() + i] = static_cast<std::uint16_t>(100 * thread.lane() + i);
    }
    thread.sync();
    std::uint32_t straight[4], transposed[4];
    thread.load_matrices(straight, shared + 8 * thread.lane());
    thread.load_matrices_transposed(transposed, shared + 8 * thread.lane());
    EXPECT_EQ(
        straight[0],
        static_cast<std::uint32_t>(100 * (thread.lane() / 4) + 2 * (thread.lane() % 4)) +
            (static_cast<std::uint32_t>(100 * (thread.lane() / 4) + 2 * (thread.lane() % 4) + 1)
             << 16));
    EXPECT_EQ(thread.transpose(straight[2]), transposed[2]);
  });
}

TEST(EmulatedThread, ACopyIsThereOnlyAfterItsWaitAndABarrier) {
  const float numbers[4] = {1, 2, 3, 4};
  run_grid({}, 64, 64, ThreadOrder::kForward, [&](EmulatedThread& thread) {
    auto* shared = reinterpret_cast<float*>(thread.shared());
    if (thread.index() == 40) {
      thread.copy_async<16>(shared, numbers, true);
      thread.copy_async<4>(shared + 4, numbers, false);
    }
    thread.commit();
    thread.commit();
    thread.wait<2>();
    thread.sync();
    EXPECT_TRUE(std::isnan(shared[2]));
    thread.sync();
    thread.wait<1>();
    thread.sync();
    EXPECT_EQ(shared[2], 3);
    EXPECT_EQ(shared[4], 0);
  });
}

TEST(EmulatedThread, TheLastOfACounterIsTheBlockThatRanLast) {
  for (const ThreadOrder order : {ThreadOrder::kForward, ThreadOrder::kBackward}) {
    std::uint32_t counter = 0;
    std::vector<int> last;
    for (int run = 0; run < 2; ++run) {
      run_grid({2, 1, 3}, 32, 0, order, [&](EmulatedThread& thread) {
        if (thread.index() == 0 && thread.is_last_of(&counter, 6)) {
          last.push_back(2 * thread.block_z() + thread.block_x());
        }
      });
    }
    const int expected = order == ThreadOrder::kForward ? 5 : 0;
    EXPECT_EQ(last, std::vector<int>({expected, expected}));
    EXPECT_EQ(counter, 0u);
  }
}

// Every block sees what all of them wrote before.
TEST(EmulatedThread, BlocksThatRunAtOnceWaitForOneAnother) {
  for (const ThreadOrder order : {ThreadOrder::kForward, ThreadOrder::kBackward}) {
    std::uint32_t counter = 0;
    int written[4] = {};
    std::vector<int> sums, last;
    run_grid({4, 1, 1, true}, 64, 0, order, [&](EmulatedThread& thread) {
      if (thread.index() == 0) {
        written[thread.block_x()] = 1 + thread.block_x();
        EXPECT_FALSE(thread.is_last_of(&counter, 8));
        thread.wait_for(&counter, 4);
        sums.push_back(written[0] + written[1] + written[2] + written[3]);
        if (thread.is_last_of(&counter, 8)) {
          last.push_back(thread.block_x());
        }
      }
      thread.sync();
    });
    EXPECT_EQ(sums, std::vector<int>({10, 10, 10, 10}));
    EXPECT_EQ(last.size(), 1u);
    EXPECT_EQ(counter, 0u);
  }
}

TEST(EmulatedThread, ABlockThatWaitsForOnesThatDoNotRunThrows) {
  for (const bool at_once : {false, true}) {  // three wait for four
    std::uint32_t counter = 0;
    EXPECT_THROW(run_grid({3, 1, 1, at_once}, 32, 0, ThreadOrder::kForward,
                          [&](EmulatedThread& thread) {
                            if (thread.index() == 0) {
                              (void)thread.is_last_of(&counter, 8);
                              thread.wait_for(&counter, at_once ? 4 : 3);
                            }
                          }),
                 std::runtime_error);
  }
}

TEST(EmulatedThread, ABarrierThatSomeThreadsMissThrows) {
  EXPECT_THROW(run_grid({}, 64, 0, ThreadOrder::kForward,
                        [](EmulatedThread& thread) {
                          if (thread.warp() == 0) {
                            thread.sync();
                          }
                        }),
               std::runtime_error);
}

TEST(EmulatedThread, AMisalignedCopyThrows) {
  const float numbers[8] = {};
  EXPECT_THROW(run_grid({}, 32, 64, ThreadOrder::kForward,
                        [&](EmulatedThread& thread) {
                          thread.copy_async<8>(thread.shared() + 4, numbers, true);
                        }),
               std::runtime_error);
}

}  // namespace
}  // namespace kvc::testing
