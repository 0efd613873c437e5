"""Smart replies: the last messages of a conversation, and a wish for something to answer."""

from __future__ import annotations

from drafthead.tasks.slots import Slots

INSTRUCTIONS = (
    "Draft a quick reply for {me}.",
    "Give me a polite reply that says no.",
    "Reply in a professional tone, two sentences at most.",
    "I am {me}. How should I respond? Just the message, please.",
    "Generate 3 smart replies for {me}, one per line: one positive, one negative, one asking a "
    "question.",
    "Suggest a short and friendly answer from {me}.",
)
OPENERS = (
    ("Are you free on {day} around {time}?", "Maybe, what is it about?", "{event}, at {place}."),
    ("Do you still have {thing}?", "I think so. Why?", "I need it for {event} on {day}."),
    ("How was {city}?", "Lovely! We ate {food} every day.", "Did you visit {place} too?"),
    ("The invoice from {firm} says {money}.", "That is more than we agreed.", "Shall I call them?"),
    ("I am cooking {food} tonight.", "Sounds great.", "Do you want to join us at {time}?"),
    ("We need someone to prepare {event}.", "When is it?", "On {date}. Could you do it?"),
    (
        "My car broke down near {place}.",
        "Oh no! Are you all right?",
        "Yes, but can you pick me up?",
    ),
    ("Have you read about {topic}?", "Only the headline.", "What do you think of it?"),
    ("Dear customer, your visit of {firm} is planned for {date}.", "", "Does {time} suit you?"),
    ("Thank you for coming to {event}!", "It was fun.", "Shall we do it again on {day}?"),
)


def prompt(slots: Slots) -> str:
    """One prompt: a conversation of two people that waits for an answer."""
    random = slots.random
    other, me = slots.people(2)
    first, answer, last = (slots.fill(line) for line in random.choice(OPENERS))
    lines = [f"{other}: {first}", *([f"{me}: {answer}"] if answer else []), f"{other}: {last}"]
    instruction = random.choice(INSTRUCTIONS).replace("{me}", me)
    if random.random() < 0.3:
        return "\n".join([*lines, "", instruction])
    return "\n".join([instruction, "", *lines])
