"""Worked examples for each class of task: what a base model is shown before it is asked.

Pairs of an input and its output, written for this project and dedicated to the public domain
(CC0-1.0). No output holds two blank lines in a row or a heading: they end an answer.
"""

from __future__ import annotations

from typing import NamedTuple


class Example(NamedTuple):
    """What was asked, and a good answer."""

    question: str
    answer: str


GENERAL = (
    Example(
        "Why do leaves turn yellow in autumn?",
        "Trees stop making green chlorophyll when the days get short. The yellow colours, which "
        "were there all along, can then be seen.",
    ),
    Example(
        "Name three things that a first-aid kit should hold.",
        "Plasters, sterile gauze and a pair of scissors.",
    ),
)

EXAMPLES = {
    "notif_summary": (
        Example(
            "Summarize these notifications in one sentence.\n\n"
            "[09:10] Calendar: Choir practice moved to Thursday at 18:30.\n"
            "[09:25] Bank: Payment of $18 to Blue Kettle was successful.\n"
            "[09:40] Messages: Noor: can you bring the tent on Saturday?",
            "Choir practice is now Thursday at 18:30, you paid $18 to Blue Kettle, and Noor asks "
            "you to bring the tent on Saturday.",
        ),
        Example(
            "What did I miss in this chat? At most 15 words.\n\n"
            "Emil: is the hike still on?\nTara: yes, but from platform 4\nEmil: what time?\n"
            "Tara: 8:15, bring rain clothes",
            "The hike is on: meet at platform 4 at 8:15 with rain clothes.",
        ),
    ),
    "proofread": (
        Example(
            "Correct the mistakes in this text.\n\n"
            "Their is a new bakery at the corner, and it's bread taste wonderfull.",
            "There is a new bakery at the corner, and its bread tastes wonderful.",
        ),
        Example(
            "Proofread the text below and return only the corrected version.\n\n"
            "Dear Mrs Lund, I has recieved your letter on monday. "
            "We would be happy too meet you in the office.",
            "Dear Mrs Lund, I received your letter on Monday. "
            "We would be happy to meet you in the office.",
        ),
    ),
    "smart_reply": (
        Example(
            "Write a short reply to the last message.\n\n"
            "Petra: Are you free on Friday evening?\nMe: I think so. Why?\n"
            "Petra: I have two tickets for the museum.",
            "Oh, I would love to come! When shall we meet?",
        ),
        Example(
            "Suggest three short replies, one per line.\n\n"
            "Hello, your bicycle is repaired. Can you pick it up before six today?",
            "Yes, I will be there at five.\nSorry, not today. Is tomorrow morning fine?\n"
            "Great, how much will it be?",
        ),
    ),
    "rewrite": (
        Example(
            "Make this more polite: Send me the file now, I have waited long enough.",
            "Could you please send me the file when you have a moment? I have been waiting for a "
            "while. Thank you!",
        ),
        Example(
            "Rewrite in plain English.\n\nThe utilisation of the elevator is not permitted in the "
            "event of a fire.",
            "Do not use the lift if there is a fire.",
        ),
    ),
    "chat": (
        Example(
            "How can I keep bread fresh for longer?",
            "Keep it in a cotton bag or a bread box at room temperature, cut side down. What you "
            "will not eat within two days is best sliced and frozen.",
        ),
        Example(
            "Can you give me ideas for a rainy Sunday with children?",
            "Of course! Here are some ideas:\n- Build a den out of blankets and chairs.\n"
            "- Bake simple biscuits together.\n- Draw a treasure map and hide something small.",
        ),
    ),
    "translation": (
        Example(
            "Translate Spanish to English:\nEl tren sale a las ocho y llega por la tarde.",
            "The train leaves at eight and arrives in the afternoon.",
        ),
        Example(
            "Translate the text into German.\n\n"
            "The library is closed on Mondays, but you can return books at any time.",
            "Die Bibliothek ist montags geschlossen, aber Sie können Bücher jederzeit zurückgeben.",
        ),
    ),
    "math": (
        Example(
            "Mina buys 3 notebooks for $4 each and a pen for $2. She pays with $20. How much "
            "money does she get back?",
            "The notebooks cost 3 x 4 = 12 dollars. With the pen she pays 12 + 2 = 14 dollars. "
            "She gets back 20 - 14 = 6 dollars.\n#### 6",
        ),
        Example(
            "A bus has 40 seats. At the first stop 12 people get on, at the second stop twice as "
            "many. How many seats are still free? Explain your steps.",
            "At the second stop 2 x 12 = 24 people get on. Altogether 12 + 24 = 36 seats are "
            "taken. So 40 - 36 = 4 seats are free.\n#### 4",
        ),
    ),
    "code": (
        Example(
            "Write a Python function that counts the vowels of a text.",
            "```python\ndef count_vowels(text):\n"
            '    """Count the vowels of a text."""\n'
            '    return sum(letter in "aeiou" for letter in text.lower())\n```',
        ),
        Example(
            "What does this code do?\n\n```python\nnames = sorted(set(names))\n```",
            "It drops the names that occur more than once and puts the others in alphabetical "
            "order: `set` keeps each name once, and `sorted` returns them as a sorted list.",
        ),
    ),
    "summarization": (
        Example(
            "Summarize the text in one sentence.\n\n"
            "The old bridge over the river was built in 1902 and carried trams until 1961. After "
            "years of neglect the town bought it, repaired its arches and opened it again in May "
            "as a path for walkers and cyclists. More than two thousand people came on the first "
            "day.",
            "The bridge of 1902, once used by trams, was repaired by the town and opened in May "
            "as a path for walkers and cyclists.",
        ),
        Example(
            "Give the main points of this text.\n\n"
            "Bees visit flowers for nectar and pollen. While they do so, pollen sticks to their "
            "hair and reaches the next flower, which can then bear fruit. Fewer bees therefore "
            "mean smaller harvests of apples, cherries and almonds.",
            "- Bees carry pollen from flower to flower while they look for food.\n"
            "- Flowers need this to bear fruit.\n"
            "- With fewer bees, fruit and nut harvests shrink.",
        ),
    ),
    "rag_qa": (
        Example(
            "Answer the question with the help of the passage.\n\n"
            "Passage: The lighthouse on Gull Island was lit for the first time in 1874. Its lamp "
            "burned oil until 1931, when electricity reached the island.\n\n"
            "Question: When did the lighthouse get electric light?",
            "The lighthouse got electric light in 1931, when electricity reached the island.",
        ),
        Example(
            "Use the sources to answer and cite their numbers.\n\n"
            "[1] Quinoa is a grain-like seed from the Andes.\n"
            "[2] Cooked quinoa holds about 4 grams of protein in 100 grams.\n\n"
            "Where does quinoa come from?",
            "Quinoa comes from the Andes [1].",
        ),
    ),
}
