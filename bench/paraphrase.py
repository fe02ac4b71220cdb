"""Paraphrases of simple English by rule: other words and names of the same meaning, some sentences shortened or lengthened.
Pairs of prompts for measuring reuse of caches; needs no library."""

import random
import re

# Groups of words that stand for each other in simple stories; names are exchanged throughout a text.
SYNONYMS = """big large|small little|happy glad|sad unhappy|said replied|looked gazed|saw noticed|nice kind|pretty beautiful|
scared afraid|liked enjoyed|wanted wished|ran hurried|walked went|jumped leaped|house home|mom mother|dad father|shouted yelled|
smiled grinned|started began|found discovered|very really|quickly fast|soon shortly|many lots|good great|bad awful|friend pal|
road street|fast quick|quiet silent|mad angry|shiny bright|rock stone|hid vanished|boat ship|tasty yummy|tired sleepy|talk speak|
help assist|made built|took grabbed|gave handed|asked wondered|tried attempted|loved adored|played romped|cold chilly|
put placed|got received|thought believed|old ancient|new fresh|careful cautious|brave bold|funny silly"""
NAMES = ["Lily", "Tom", "Tim", "Ben", "Sara", "Mia", "Anna", "Max", "Sam", "Jack", "Lucy", "Timmy", "Sue", "Bob", "Amy"]
OPENINGS = ["Then ", "After that, ", "So ", "Now "]
LENGTHENED, DROPPED = 0.08, 0.05  # of the sentences, at full strength


def alternatives():
    table = {}
    for group in SYNONYMS.replace("\n", "").split("|"):
        first, second = group.split()
        table[first], table[second] = second, first
    return table


def sentences_of(text):
    """Sentences with the space behind each; together they are the text."""
    return re.findall(r".+?(?:[.!?]\"?\s+|$)", text, re.DOTALL)


def paraphrase(text, seed, strength):
    """The same story in other words. `strength` from 0 to 1: the share of the words with a synonym that are replaced,
    and how often sentences get longer or go; from 0.5 on some texts have other names too."""
    chance = random.Random(seed)
    table = alternatives()
    shuffled = NAMES[1:] + NAMES[:1]
    names = dict(zip(NAMES, shuffled)) if chance.random() < 0.5 <= strength else {}

    def replace(match):
        word = match.group(0)
        if word in names:
            return names[word]
        other = table.get(word.lower())
        if other is None or chance.random() > strength:
            return word
        return other.capitalize() if word[0].isupper() else other

    result = []
    for sentence in sentences_of(text):
        if chance.random() < DROPPED * strength:
            continue
        changed = re.sub(r"[A-Za-z]+", replace, sentence)
        if changed and chance.random() < LENGTHENED * strength and changed[0].isupper() and changed.split()[0] not in NAMES:
            changed = chance.choice(OPENINGS) + changed[0].lower() + changed[1:]
        result.append(changed)
    return "".join(result)


def rouge_l(candidate, reference):
    """F of the longest common subsequence of two lists."""
    if not candidate or not reference:
        return float(candidate == reference)
    row = [0] * (len(reference) + 1)
    for word in candidate:
        diagonal = 0
        for index, other in enumerate(reference, 1):
            diagonal, row[index] = row[index], (diagonal + 1 if word == other else max(row[index], row[index - 1]))
    precision, recall = row[-1] / len(candidate), row[-1] / len(reference)
    return 0.0 if row[-1] == 0 else 2 * precision * recall / (precision + recall)
