"""Proofreading: a short text with slips, and a wish to have them put right."""

from __future__ import annotations

from random import Random

from drafthead.tasks.slots import Slots

INSTRUCTIONS = (
    "Proofread the text below and return the corrected version only.",
    "Can you check this for mistakes before I send it?",
    "I wrote this on my phone. Please fix the typos.",
    "Correct the sentences below. If there is no error, repeat the text unchanged.",
    "Clean up this text (typos, missing words, punctuation).",
)
SENTENCES = (
    "Hi {name}, thank you for your help with {event}.",
    "The meeting is on {day} at {time} in {place}.",
    "Please bring {thing} and tell the others as well.",
    "I have received the package from {firm}, but one item is missing.",
    "We would like to invite you to {event} on {date}.",
    "The weather in {city} was beautiful and the people were very friendly.",
    "My train was late, so I could not reach you before {time}.",
    "Could you send me the address again, because I have lost it?",
    "There were {number} of us and the bill was {money}.",
    "I am looking forward to hearing from you.",
    "Their new office is close to the station, but it is quite loud.",
    "She does not think that the plan will work without more people.",
    "The restaurant serves the best {food} I have ever eaten.",
    "If it rains on {day}, we will definitely meet inside.",
    "It is important that everybody knows about the change.",
    "Let me know whether {time} suits you.",
)
CONFUSIONS = (
    ("their", "there"), ("Their", "There"), ("there", "their"), ("your", "you're"),
    ("whether", "wether"), ("received", "recieved"), ("definitely", "definately"),
    ("because", "becuase"), ("does not", "do not"),
    ("were", "was"), ("beautiful", "beatiful"), ("forward to hearing", "forward to hear"),
    ("people", "poeple"), ("important", "importent"), ("address", "adress"), ("could", "coud"),
)  # fmt: skip


def swap_letters(text: str, random: Random) -> str:
    """Swap two neighbouring letters inside one longer word."""
    words = text.split(" ")
    long = [index for index, word in enumerate(words) if len(word) > 4 and word.isalpha()]
    if not long:
        return text
    index = random.choice(long)
    word = words[index]
    at = random.randint(1, len(word) - 3)
    words[index] = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    return " ".join(words)


def drop_word(text: str, random: Random) -> str:
    """Leave one short word out."""
    words = text.split(" ")
    short = [index for index, word in enumerate(words) if word in ("the", "a", "to", "is", "of")]
    if short:
        del words[random.choice(short)]
    return " ".join(words)


def spoil(text: str, random: Random) -> str:
    """Put one to three slips into a text: a confusion, swapped letters, a lost word or comma."""
    for _ in range(random.randint(1, 3)):
        kind = random.randrange(4)
        fitting = [pair for pair in CONFUSIONS if pair[0] in text]
        if kind == 0 and fitting:
            text = text.replace(*random.choice(fitting), 1)
        elif kind == 1:
            text = drop_word(text, random)
        elif kind == 2:
            text = text.replace(",", "", 1)
        else:
            text = swap_letters(text, random)
    return text


def prompt(slots: Slots) -> str:
    """One prompt: two to five sentences with slips."""
    random = slots.random
    sentences = random.sample(SENTENCES, random.randint(2, 5))
    text = " ".join(spoil(slots.fill(sentence), random) for sentence in sentences)
    return f"{random.choice(INSTRUCTIONS)}\n\n{text}"
