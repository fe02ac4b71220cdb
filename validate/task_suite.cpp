#include "validate/task_suite.h"

#include <algorithm>

#include "core/error.h"
#include "core/hash.h"
#include "core/progress.h"
#include "runtime/program/generation_config.h"
#include "validate/comparison.h"
#include "validate/greedy_answers.h"
#include "validate/tasks/task_kinds.h"

namespace kvc {

std::vector<std::int64_t> task_lengths(const TaskOptions& options, const ModelConfig& config) {
  constexpr std::int64_t kDefault = 4096;
  const std::int64_t context = config.max_position_embeddings;
  std::vector<std::int64_t> lengths;
  for (const std::int64_t length : options.lengths) {
    KVC_CHECK_USAGE(length >= 1 && length <= context,
                    "--task-length {}: must be from 1 to the model's context, {} tokens", length,
                    context);
    if (std::find(lengths.begin(), lengths.end(), length) == lengths.end()) {
      lengths.push_back(length);
    }
  }
  return lengths.empty() ? std::vector{std::min(kDefault, context)} : lengths;
}

namespace {

constexpr std::int64_t kTaskBatchTokens = 8192;

std::int64_t samples_per_batch(std::int64_t length) {
  return std::max<std::int64_t>(kTaskBatchTokens / length, 1);
}

std::string prompt_hash(const TaskSample& sample) {
  std::string text = sample.context;
  for (const TaskQuestion& question : sample.questions) {
    text += plain_text(question);
  }
  return sha256_hex(text);
}

double mean_score(const Task& task, const TaskSample& sample,
                  const std::vector<std::string>& outputs) {
  double sum = 0;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    sum += task.score(outputs[i], sample.questions[i]);
  }
  return sum / static_cast<double>(outputs.size());
}

// What the scores of a task at a length come from.
struct ScoreSums {
  TaskScores scores;
  std::vector<SequenceSum> reference, candidate, difference;
};

}  // namespace

std::vector<TaskScores> summarize(const std::vector<Json>& lines) {
  std::vector<ScoreSums> parts;
  for (const Json& line : lines) {
    const auto task = line.at("task").get<std::string>();
    const auto length = line.at("length").get<std::int64_t>();
    auto part = std::find_if(parts.begin(), parts.end(), [&](const ScoreSums& sums) {
      return sums.scores.task == task && sums.scores.length == length;
    });
    if (part == parts.end()) {
      part = parts.insert(parts.end(), ScoreSums{});
      part->scores.task = task;
      part->scores.length = length;
    }
    const auto reference = line.at("reference").at("score").get<double>();
    const auto candidate = line.at("candidate").at("score").get<double>();
    part->reference.push_back({reference, 1});
    part->candidate.push_back({candidate, 1});
    part->difference.push_back({candidate - reference, 1});
  }
  std::vector<TaskScores> result;
  for (ScoreSums& part : parts) {
    part.scores.num_samples = static_cast<std::int64_t>(part.reference.size());
    part.scores.reference = clustered_mean(part.reference);
    part.scores.candidate = clustered_mean(part.candidate);
    part.scores.difference = clustered_mean(part.difference);
    result.push_back(std::move(part.scores));
  }
  return result;
}

TaskSuite::TaskSuite(const ValidateOptions& options, const ModelConfig& config, Json run)
    : options_(options.tasks),
      seed_(options.seed),
      tokenizer_(Tokenizer::load(options.reference)),
      bos_(special_tokens(options.reference).value("bos_token", "")),
      stop_ids_(stop_ids(options.reference, config)) {
  KVC_CHECK_USAGE(options_.num_samples >= 1, "--task-samples {}: must be at least 1",
                  options_.num_samples);
  const TaskInputs inputs = read_task_inputs(options_.texts);
  tasks_ = choose_tasks(options_.names, inputs);
  run["texts"] = inputs.hashes;
  run["questions_after"] = options_.questions_after;
  run["stop_ids"] = stop_ids_;
  run["bos"] = bos_;
  if (options_.chat) {
    chat_template_ = ChatTemplate::load(options.reference, "Leave --task-chat out");
    run["chat_template"] = chat_template_->hash();
  }
  for (const Task& task : tasks_) {
    for (const std::int64_t length : options_.lengths) {
      parts_.push_back({&task, length, std::min(options_.num_samples, task.num_samples)});
      check_length(parts_.back());
      sample(parts_.back(), 0);
      run["parts"].push_back({task.name, length, parts_.back().num_samples});
    }
  }
  check_fixed_prompts(config);
  results_ = std::make_unique<TaskResults>(options_.results, sha256_hex(run.dump()).substr(0, 16),
                                           options_.force);
  check_left_lines();
}

// An interrupted run leaves the first lines of what this one writes.
void TaskSuite::check_left_lines() {
  auto line = results_->lines().begin();
  const auto end = results_->lines().end();
  const auto is_sample = [&](const Part& part, std::int64_t sample) {
    const auto score = [&](const char* model) {
      const Json of_model = line->value(model, Json());
      return of_model.is_object() && of_model.value("score", Json()).is_number();
    };
    return line->value("task", Json()) == part.task->name &&
           line->value("length", Json()) == part.length &&
           line->value("sample", Json()) == sample && score("reference") && score("candidate");
  };
  bool is_left = true;
  for (const Part& part : parts_) {
    for (std::int64_t i = 0; i < part.num_samples && line != end && is_left; ++i) {
      is_left = is_sample(part, i);
      line += is_left ? 1 : 0;
    }
  }
  const std::ptrdiff_t good = line - results_->lines().begin();
  KVC_CHECK(line == end || options_.force,
            "{}: line {} is not what an interrupted run leaves there; start anew with --force",
            results_->partial().string(), good + 1);
  if (line != end) {
    results_->keep_first(static_cast<std::size_t>(good));
  }
}

// Every record, because a long one may come late.
void TaskSuite::check_fixed_prompts(const ModelConfig& config) const {
  std::int64_t least = 0;
  for (const Part& part : parts_) {
    if (!part.task->fixed_prompts || part.length != parts_.front().length) {
      continue;  // the records are the same at every length
    }
    const bool after = options_.questions_after || part.task->questions_after;
    for (std::int64_t i = 0; i < part.num_samples; ++i) {
      least = std::max(least,
                       prompt_tokens(format(), sample(part, i), after) + part.task->max_new_tokens);
    }
  }
  for (const Part& part : parts_) {
    const std::int64_t context = config.max_position_embeddings;
    KVC_CHECK(
        !part.task->fixed_prompts || least <= part.length,
        "--task-length {}: the chosen records take {} tokens with this model's tokenizer, "
        "answers included, and are never shortened; {}",
        part.length, least,
        least <= context
            ? fmt::format("give --task-length {}", least)
            : fmt::format("the model's context is {} tokens, so leave long records out", context));
  }
}

std::int64_t TaskSuite::least_length_of(const Part& part) const {
  std::int64_t least = 0;
  for (std::int64_t i = 0; i < part.num_samples; ++i) {
    least = std::max(
        least, least_length(*part.task, format(), part.length, options_.questions_after, seed_, i));
  }
  return least;
}

// A greater length has other samples, which may take more again.
void TaskSuite::check_length(const Part& part) const {
  const std::int64_t least = part.task->fixed_prompts ? 0 : least_length_of(part);
  if (least <= part.length) {
    return;
  }
  Part enough = part;
  for (std::int64_t needed = least; needed > enough.length; needed = least_length_of(enough)) {
    enough.length = needed;
  }
  fail(
      "--task-length {}: {} takes at least {} tokens with this model's tokenizer, {} of them for "
      "the answer; give --task-length {}; other lengths have other samples",
      part.length, part.task->name, least, part.task->max_new_tokens, enough.length);
}

PromptFormat TaskSuite::format() const {
  return {tokenizer_, chat_template_ ? &*chat_template_ : nullptr, bos_};
}

TaskSample TaskSuite::sample(const Part& part, std::int64_t index) const {
  return make_sample(*part.task, format(), part.length, options_.questions_after, seed_, index);
}

std::vector<Json> TaskSuite::run_batch(const Part& part, std::int64_t begin, std::int64_t end,
                                       const Engine& reference, const Engine& candidate) const {
  std::vector<TaskSample> samples;
  for (std::int64_t i = begin; i < end; ++i) {
    samples.push_back(sample(part, i));
  }
  const auto answers_of = [&](const Engine& engine) {
    return greedy_answers(engine, format(), *part.task, samples, stop_ids_,
                          options_.questions_after);
  };
  const auto of_reference = answers_of(reference), of_candidate = answers_of(candidate);
  std::vector<Json> lines;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    Json answers = Json::array();
    for (const TaskQuestion& question : samples[i].questions) {
      answers.push_back(question.answers);
    }
    const auto of_model = [&](const std::vector<std::string>& outputs) {
      return Json{{"score", mean_score(*part.task, samples[i], outputs)}, {"outputs", outputs}};
    };
    lines.push_back(
        {{"run", results_->run()},
         {"task", part.task->name},
         {"length", part.length},
         {"seed", seed_},
         {"chat", options_.chat},
         {"sample", begin + static_cast<std::int64_t>(i)},
         {"prompt_sha256", prompt_hash(samples[i])},
         {"prompt_tokens", prompt_tokens(format(), samples[i],
                                         options_.questions_after || part.task->questions_after)},
         {"depths", samples[i].depths},
         {"answers", answers},
         {"reference", of_model(of_reference[i])},
         {"candidate", of_model(of_candidate[i])}});
  }
  return lines;
}

std::vector<TaskScores> TaskSuite::run(const Engine& reference, const Engine& candidate) {
  std::int64_t total = 0, done = 0;
  for (const Part& part : parts_) {
    total += part.num_samples;
  }
  Progress progress("tasks", total);
  for (const Part& part : parts_) {
    const std::int64_t step = samples_per_batch(part.length);
    for (std::int64_t begin = 0; begin < part.num_samples; begin += step) {
      const std::int64_t end = std::min(begin + step, part.num_samples);
      // Batches are read and written as a whole: an output depends on its batch by rounding.
      if (done + end - begin > static_cast<std::int64_t>(results_->lines().size())) {
        results_->keep_first(static_cast<std::size_t>(done));
        results_->append(run_batch(part, begin, end, reference, candidate));
      }
      done += end - begin;
      progress.advance(end - begin);
    }
  }
  std::vector<TaskScores> scores = summarize(results_->lines());
  results_->commit();
  return scores;
}

}  // namespace kvc
