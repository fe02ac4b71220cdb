#include "validate/validate.h"

#include <gmock/gmock.h>

#include <fstream>

#include "core/checkpoint.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/json.h"
#include "core/output.h"
#include "core/token_set.h"
#include "model/decoder.h"
#include "model/text.h"
#include "tests/testing/error_of.h"
#include "tests/testing/synthetic_checkpoint.h"
#include "tests/testing/temporary_directory.h"

namespace kvc::testing {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

std::string program(const std::string& name) { return std::string(KVC_BIN_DIR) + "/" + name; }

class Validate : public ::testing::Test {
 protected:
  void SetUp() override {
    write(original_, 0);
    std::string text;
    for (int i = 0; i < 400; ++i) {
      text += "Once upon a time there was a little girl number " + std::to_string(i) + ". ";
    }
    write_file(text_, text);
    options_.reference = original_;
    options_.candidate = original_;
    options_.texts = {text_};
    options_.num_sequences = 3;
    options_.seq_len = 64;
  }
  static void write(const fs::path& path, std::uint64_t seed) {
    SyntheticCheckpoint synthetic;
    synthetic.tokenizer = true;
    synthetic.seed = seed;
    write_synthetic_checkpoint(path, synthetic);
  }
  void expect_error(const std::string& part) const {
    EXPECT_THAT(error_of([&] { validate(options_); }), HasSubstr(part));
  }
  // Exit code of kvvalidate; its stderr goes to `log_`.
  int run(const std::string& arguments) const {
    const std::string command = program("kvvalidate") + " " + original_.string() + " " +
                                other_.string() + " --text " + text_.string() +
                                " --num-sequences 2 --seq-len 32 --quiet " + arguments + " >" +
                                (directory_ / "out").string() + " 2>" + log_.string();
    return WEXITSTATUS(std::system(command.c_str()));
  }

  TemporaryDirectory directory_;
  fs::path original_ = directory_ / "original", other_ = directory_ / "other";
  fs::path text_ = directory_ / "text.txt", log_ = directory_ / "log";
  ValidateOptions options_;
};

TEST_F(Validate, IdenticalModelsAgreeExactly) {
  const ValidationReport report = validate(options_);
  for (const Comparison* setting : {&report.teacher_forced, &report.continuation}) {
    EXPECT_EQ(setting->kl_divergence.mean, 0.0);
    EXPECT_EQ(setting->kl_divergence.standard_error, 0.0);
    EXPECT_EQ(setting->kl_max, 0.0);
    EXPECT_EQ(setting->same_top.mean, 1.0);
    EXPECT_EQ(setting->perplexity_ratio, 1.0);
    EXPECT_EQ(setting->delta_p_rms.mean, 0.0);
  }
  EXPECT_EQ(report.teacher_forced.num_positions, 3 * 63);
  EXPECT_EQ(report.continuation.num_positions, 3 * 32);
  EXPECT_DOUBLE_EQ(report.kept_ratio, 1.0);  // 64 tokens are whole pages
  EXPECT_EQ(report.original_kv_bytes, 3 * 2 * 4 * 16 * 64 * 4);
}

TEST_F(Validate, KeptLogitsGiveTheSameNumbers) {
  write(other_, 1);
  options_.calibration_tokens = directory_ / "tokens.h5";
  TokenSet tokens;
  tokens.sequences = {{1, 2, 3, 4}, {5, 6, 7, 8}};
  write_token_set(options_.calibration_tokens, tokens);
  for (const std::int64_t block : {0, 16}) {
    options_.block_tokens = block;
    options_.candidate = other_;
    options_.reference_logits.clear();
    const Json alone = to_json(validate(options_));
    options_.reference_logits = directory_ / "kept";
    fs::create_directories(options_.reference_logits);
    options_.candidate = original_;
    validate(options_);  // keeps them
    options_.candidate = other_;
    EXPECT_EQ(to_json(validate(options_)), alone);
  }
  for (const auto& entry : fs::directory_iterator(options_.reference_logits)) {
    if (entry.path().extension() == ".safetensors") {
      fs::resize_file(entry.path(), 16);  // it is read, not computed
    }
  }
  expect_error(".safetensors");
}

TEST_F(Validate, TeacherForcedNllIsTheDecoders) {
  const Checkpoint checkpoint = Checkpoint::open(original_);
  const Decoder decoder(checkpoint, at::kFloat);
  TextOptions text;
  text.num_sequences = 3;
  text.seq_len = 64;
  const TokenSet tokens =
      load_token_set({text_}, Tokenizer::load(original_), 512, text, "evaluation");
  double sum = 0, of_halves = 0;
  for (const auto& row : tokens.sequences) {
    FullAttention attention(decoder.config(), decoder.rope());
    const at::Tensor logits = decoder.logits(decoder.forward(TokenBatch::of({row}), attention));
    const at::Tensor targets = at::tensor(row, at::kLong).slice(0, 1);
    const at::Tensor nll = at::nll_loss(at::log_softmax(logits.to(at::kDouble), 1).narrow(0, 0, 63),
                                        targets, {}, at::Reduction::None);
    sum += nll.mean().item<double>();
    of_halves += nll.narrow(0, 31, 32).mean().item<double>();
  }
  const ValidationReport report = validate(options_);
  EXPECT_NEAR(report.teacher_forced.reference_nll.mean, sum / 3, 1e-5);
  // A plain cache continues as one forward would: the second half's tokens, by all before them.
  EXPECT_NEAR(report.continuation.reference_nll.mean, of_halves / 3, 1e-5);
}

TEST_F(Validate, BlocksScoreEverythingBehindTheFirst) {
  write(other_, 1);
  options_.candidate = other_;
  const Comparison halves = validate(options_).continuation;
  options_.block_tokens = 24;
  const ValidationReport report = validate(options_);
  EXPECT_EQ(report.continuation.num_positions, 3 * (64 - 24));
  EXPECT_DOUBLE_EQ(report.kept_ratio, 1.0);
  // A plain cache makes no difference: later positions are those of the other setting.
  const auto& ranges = report.continuation.kl_by_position;
  double sum = 0, count = 0;
  for (const PositionRange& range : ranges) {
    if (range.begin >= 32) {
      sum += range.kl_divergence * static_cast<double>(range.end - range.begin);
      count += static_cast<double>(range.end - range.begin);
    }
  }
  EXPECT_NEAR(sum / count, halves.kl_divergence.mean, 0.05 * halves.kl_divergence.mean);
  options_.block_tokens = -1;
  expect_error("--block -1");
}

TEST_F(Validate, BlocksOfOneModelAgree) {
  options_.block_tokens = 16;
  const ValidationReport report = validate(options_);
  EXPECT_LT(report.continuation.kl_divergence.mean, 1e-9);  // other products, other roundings
  EXPECT_EQ(report.continuation.same_top.mean, 1.0);
}

// A copy of the original reads prompts as it does; a byte or a setting that differs has to be measured.
TEST_F(Validate, TheSameModelNeedsNoTeacherForcing) {
  write(other_, 0);
  options_.candidate = other_;
  EXPECT_TRUE(validate(options_).teacher_forced_ran) << "one pass serves both settings";
  options_.kv_dtype = "int4";
  const ValidationReport same = validate(options_);
  EXPECT_FALSE(same.teacher_forced_ran);
  EXPECT_EQ(same.teacher_forced.kl_divergence.mean, 0);
  EXPECT_EQ(same.teacher_forced.num_positions, 3 * 63);
  EXPECT_GT(same.continuation.kl_divergence.mean, 0);
  EXPECT_THAT(text_report(same), HasSubstr("teacher-forced: not run"));
  const fs::path weights = other_ / "model.safetensors";
  std::string bytes = read_file(weights, 1 << 24);
  bytes[bytes.size() - 1] ^= 1;  // an exponent's bit of the last tensor
  fs::remove(weights);
  write_file(weights, bytes);
  const ValidationReport flipped = validate(options_);
  EXPECT_TRUE(flipped.teacher_forced_ran);
  EXPECT_GT(flipped.teacher_forced.kl_divergence.mean, 0);
  fs::remove_all(other_);
  write(other_, 0);
  Json config = read_json(other_ / "config.json", 1 << 20);
  config["rope_theta"] = 500.0;
  fs::remove(other_ / "config.json");
  write_file(other_ / "config.json", dump_json(config));
  EXPECT_GT(validate(options_).teacher_forced.kl_divergence.mean, 0);
}

TEST_F(Validate, AnotherTypeOfCacheIsTheCandidates) {
  options_.kv_dtype = "float16";
  const ValidationReport report = validate(options_);
  EXPECT_DOUBLE_EQ(report.kept_ratio, 0.5);
  EXPECT_GT(report.continuation.kl_divergence.mean, 0);
}

// Whatever computes, 16-bit numbers are what a cache of the checkpoint holds and is compared with.
TEST_F(Validate, ACacheHasTheTypeOfItsCheckpoint) {
  SyntheticCheckpoint synthetic;
  synthetic.tokenizer = true;
  synthetic.dtype = "bfloat16";
  write_synthetic_checkpoint(other_, synthetic);
  options_.reference = options_.candidate = other_;
  const ValidationReport report = validate(options_);
  EXPECT_EQ(report.options["kv_dtype"], "bfloat16");
  EXPECT_EQ(report.original_kv_bytes, 3 * 2 * 4 * 16 * 64 * 2);
  EXPECT_DOUBLE_EQ(report.kept_ratio, 1.0);
  EXPECT_GT(report.continuation.kl_divergence.mean, 0) << "the reference's cache is not rounded";
  options_.kv_dtype = "float32";
  const ValidationReport wide = validate(options_);
  EXPECT_DOUBLE_EQ(wide.kept_ratio, 2.0);
  EXPECT_EQ(wide.continuation.kl_divergence.mean, 0);
}

TEST_F(Validate, DifferentModelsDoNot) {
  write(other_, 1);
  options_.candidate = other_;
  const ValidationReport report = validate(options_);
  EXPECT_TRUE(report.teacher_forced_ran);
  EXPECT_GT(report.teacher_forced.kl_divergence.mean, 0.01);
  EXPECT_GT(report.continuation.kl_divergence.standard_error, 0);
  EXPECT_LT(report.continuation.same_top.mean, 1.0);
  EXPECT_LE(report.continuation.kl_median, report.continuation.kl_p99);
  EXPECT_LE(report.continuation.kl_p99, report.continuation.kl_max);
}

TEST_F(Validate, ThresholdsThatAreMissedAreSentences) {
  write(other_, 1);
  options_.candidate = other_;
  options_.max_kld = 1e-6;
  options_.max_ppl_ratio = 1e9;
  options_.min_same_top = 1.0;
  const ValidationReport report = validate(options_);
  ASSERT_EQ(report.missed.size(), 2u);
  EXPECT_THAT(report.missed[0], HasSubstr("--max-kld 1e-06"));
  EXPECT_THAT(report.missed[1], HasSubstr("--min-same-top 1"));
}

TEST_F(Validate, RefusesTextThatWasCalibratedOn) {
  write(other_, 0);
  Json config = read_json(other_ / "config.json");
  config["model_type"] = "kvconvert_llama";
  config["kvconvert"]["model_type"] = "llama";
  config["kvconvert"]["calibration_hashes"] = {std::string(64, '0'), sha256_hex_of_file(text_)};
  fs::remove(other_ / "config.json");
  write_file(other_ / "config.json", dump_json(config));
  options_.candidate = other_;
  expect_error("was calibrated on this evaluation text");
}

TEST_F(Validate, RefusesDifferentTokenizers) {
  write(other_, 0);
  const std::string tokenizer = read_file(other_ / "tokenizer.json", 1 << 20);
  fs::remove(other_ / "tokenizer.json");
  write_file(other_ / "tokenizer.json", tokenizer + "\n");
  options_.candidate = other_;
  expect_error("different tokenizers");
}

TEST_F(Validate, RefusesOptionsOutOfRange) {
  options_.seq_len = 257;  // the context is 256
  EXPECT_THROW(validate(options_), UsageError);
  options_.seq_len = 64;
  options_.min_same_top = 97;
  EXPECT_THROW(validate(options_), UsageError);
  options_.min_same_top.reset();
  options_.num_sequences = 0;
  EXPECT_THROW(validate(options_), UsageError);
}

// Nothing would be read through the cache, and every threshold met.
TEST_F(Validate, RefusesBlocksAsLongAsRows) {
  for (const std::int64_t block : {63, 64, 1000}) {
    options_.block_tokens = block;
    expect_error("--block " + std::to_string(block) + ": rows of 64 tokens");
  }
  options_.block_tokens = 62;
  EXPECT_EQ(validate(options_).continuation.num_positions, 3 * 2);
}

TEST_F(Validate, RefusesTasksThatCannotWork) {
  const auto expect = [&](const TaskOptions& tasks, const std::string& part) {
    options_.tasks = tasks;
    expect_error(part);
  };
  TaskOptions tasks;
  tasks.min_ratio = 1;
  expect(tasks, "--tasks");
  tasks.names = {"niah"};
  expect(tasks, "unknown task 'niah'");
  tasks.names = {"passkey"};
  tasks.lengths = {257};  // the context is 256
  expect(tasks, "--task-length 257");
  tasks.lengths = {20};
  expect(tasks, "passkey takes at least");
  expect(tasks, "give --task-length ");
  tasks.lengths = {};
  tasks.num_samples = 0;
  expect(tasks, "--task-samples 0");
  tasks.num_samples = 1;
  tasks.min_ratio = -1;
  expect(tasks, "--min-task-ratio");
  tasks.min_ratio.reset();
  tasks.texts = {directory_ / "absent.txt"};
  expect(tasks, "absent.txt");
  tasks.texts = {text_};
  expect(tasks, "which no task of --tasks reads");
}

TEST_F(Validate, ProgramExitsWith3AndStillReports) {
  write(other_, 1);
  const fs::path report = directory_ / "report.json", html = directory_ / "report.html";
  EXPECT_EQ(run("--max-kld 0 --report " + report.string() + " --html " + html.string()), 3);
  EXPECT_THAT(read_file(log_, 4096), HasSubstr("--max-kld 0"));
  EXPECT_EQ(read_json(report)["missed"].size(), 1u);
  EXPECT_TRUE(fs::exists(html));
  EXPECT_EQ(run("--report " + report.string()), 1);  // exists
  EXPECT_EQ(run("--max-kld 1e9 --json --force --report " + report.string()), 0);
  EXPECT_EQ(read_file(directory_ / "out", 1 << 20), read_file(report, 1 << 20));
  EXPECT_EQ(run("--min-same-top 2"), 2);
}

}  // namespace
}  // namespace kvc::testing
