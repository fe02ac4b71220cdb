// Sequences of which some started from a similar prompt's cache: batches, later turns, types, failures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "runtime/reuse/prompt_reuse.h"
#include "tests/runtime/factored_checkpoint.h"
#include "tests/runtime/reuse/reuse_fixture.h"
#include "tests/testing/error_of.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/zoo.h"

namespace kvc {
namespace {

namespace fs = std::filesystem;
using testing::extend;
using testing::kComputeAll;
using testing::kRounding;
using testing::prefill;
using testing::PromptReuseTest;
using testing::random_ids;
using testing::reusing;
using testing::Row;
using testing::tensors_close;
using testing::tensors_identical;

TEST_F(PromptReuseTest, EverySequenceOfABatchByItself) {
  const auto reuses = engine("store=off");
  keep_donor();
  const Row short_ids = random_ids(1, 9, model_.vocab_size, 5).front();
  const std::vector<Row> ids{short_ids, target_, donor_};
  std::vector<Sequence> together, apart;
  std::vector<Sequence*> pointers;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    together.push_back(reuses->new_sequence());
    apart.push_back(reuses->new_sequence());
  }
  for (Sequence& sequence : together) {
    pointers.push_back(&sequence);
  }
  const auto batch = reuses->prefill(pointers, ids, Engine::Rows::kLast);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    EXPECT_TRUE(tensors_close(batch[i], prefill(*reuses, apart[i], ids[i]), kRounding)) << i;
    EXPECT_EQ(together[i].reuse()->donor.empty(), i == 0);
  }
  const auto steps = reuses->extend(pointers, {more_, more_, more_}, Engine::Rows::kAll);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    EXPECT_TRUE(tensors_close(steps[i], extend(*reuses, apart[i], more_), kRounding)) << i;
  }
}

TEST_F(PromptReuseTest, LaterTurnsAndForksFollowIt) {
  const auto reuses = engine(kComputeAll);
  const auto original = testing::load_plain(model_);
  Sequence first = reuses->new_sequence();
  prefill(*reuses, first, donor_);
  Sequence sequence = reuses->new_sequence(), alone = original->new_sequence();
  prefill(*reuses, sequence, target_);
  prefill(*original, alone, target_);
  Sequence fork = sequence.fork();
  EXPECT_EQ(fork.reuse()->donor, sequence.reuse()->donor);
  const Row turn = random_ids(1, 33, model_.vocab_size, 6).front();
  const at::Tensor expected = prefill(*original, alone, turn);
  EXPECT_TRUE(tensors_close(prefill(*reuses, sequence, turn), expected, kRounding));
  EXPECT_TRUE(tensors_close(prefill(*reuses, fork, turn), expected, kRounding));
}

TEST_F(PromptReuseTest, EveryTypeOfCache) {
  for (const char* dtype : {"bfloat16", "int8", "int4", "int2"}) {
    EngineOptions options = reusing(directory_ / dtype);
    options.kv_dtype = dtype;
    const auto reuses = testing::load_plain(model_, options);
    Sequence whole = reuses->new_sequence(), again = reuses->new_sequence();
    const at::Tensor expected = prefill(*reuses, whole, donor_);
    const at::Tensor reused = prefill(*reuses, again, donor_);
    EXPECT_NE(again.reuse()->donor, "");
    EXPECT_TRUE(tensors_close(reused, expected, 0.05 * testing::spread(expected))) << dtype;
    EXPECT_EQ(again.cache().allocated_bytes(), whole.cache().allocated_bytes());
    const at::Tensor rest = extend(*reuses, whole, more_);
    EXPECT_TRUE(tensors_close(extend(*reuses, again, more_), rest, 0.1 * testing::spread(rest)));
  }
}

TEST_F(PromptReuseTest, ADamagedDonorIsNotUsed) {
  keep_donor();
  for (const auto& entry : fs::directory_iterator(directory_ / "donors")) {
    if (entry.path().extension() == ".safetensors") {
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(static_cast<std::streamoff>(entry.file_size() / 2));
      file.put('x').put('y');
    }
  }
  const auto reuses = engine();
  const auto original = testing::load_plain(model_);
  Sequence sequence = reuses->new_sequence(), alone = original->new_sequence();
  EXPECT_TRUE(
      tensors_identical(prefill(*reuses, sequence, donor_), prefill(*original, alone, donor_)));
  EXPECT_EQ(sequence.reuse()->whole, "the donor is damaged or gone");
  Sequence again = reuses->new_sequence();  // the entry was written anew
  prefill(*reuses, again, donor_);
  EXPECT_NE(again.reuse()->donor, "");
}

TEST_F(PromptReuseTest, InterruptedReadingLeavesTheSequenceEmpty) {
  const auto reuses = engine();
  Sequence first = reuses->new_sequence(), second = reuses->new_sequence();
  prefill(*reuses, first, donor_);
  int asked = 0;
  const Stopped third = [&asked] { return ++asked == 3; };
  EXPECT_THROW(reuses->prefill({&second}, {target_}, Engine::Rows::kLast, third), Interrupted);
  EXPECT_EQ(second.num_tokens(), 0);
  EXPECT_EQ(second.cache().allocated_bytes(), 0);
}

TEST_F(PromptReuseTest, RefusesWhatItCannotReuse) {
  using ::testing::HasSubstr;
  const auto zoo = [&](const std::string& name) {
    return error_of([&] {
      Engine::load(testing::load_zoo_case(name).directory, reusing(directory_ / "donors"));
    });
  };
  EXPECT_THAT(zoo("deepseek_v2_lite"), HasSubstr("latent"));
  EXPECT_THAT(zoo("llama_dynamic"), HasSubstr("depends on the length"));
  const std::string latent = error_of([&] {
    testing::load(model_,
                  testing::grouped_plan(model_, 2, 16, testing::small_policy(MergeRule::kLs)),
                  reusing(directory_ / "donors"));
  });
  EXPECT_THAT(latent, HasSubstr("expected plain"));
}

}  // namespace
}  // namespace kvc
