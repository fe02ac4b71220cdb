// Scores of an output beside one right answer, from 0 to 100, as LongBench has them (arXiv 2308.14508).
#pragma once

#include <string>
#include <vector>

namespace kvc {

// F1 of the words that both have, each as often as both have it. Case, ASCII punctuation and articles do not count.
double word_f1(const std::string& output, const std::string& answer);
// ROUGE-L of texts, of the kind that LongBench's package computes: sentences end with ".", and what counts is the set of
// words of the longest common subsequences of every pair of sentences, F1 of its shares of both texts' sets of words.
double rouge_l(const std::string& output, const std::string& answer);
// 100 / n if the answer is among the n classes that the output names, else 0. A class that is a part of the answer's
// name does not count, but one behind a class that was left out for this does, as in LongBench's code.
double class_match(const std::string& output, const std::string& answer,
                   const std::vector<std::string>& classes);
// The share of the output's numbers that equal `number`.
double number_match(const std::string& output, const std::string& number);
// 2 LCS / (length + length) of the output's first line that is no comment and no fence, in characters; whole percent.
double edit_similarity(const std::string& output, const std::string& answer);

// What comes before the second line; line breaks before it are left out.
std::string first_line(const std::string& output);
// The first run of digits; empty if there is none.
std::string first_number(const std::string& text);

}  // namespace kvc
